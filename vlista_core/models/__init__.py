"""The paper's networks and their baselines, one per file. Adding one is a new file and a line in MODELS."""

from vlista_core.configured import register
from vlista_core.models.adalista import AdaLISTA
from vlista_core.models.adlista import ADLISTA
from vlista_core.models.alista import ALISTA
from vlista_core.models.base import UnfoldedModel
from vlista_core.models.dlista import DLISTA
from vlista_core.models.hyperlista import HyperLISTA
from vlista_core.models.lista import LISTA
from vlista_core.models.lista_cp import LISTACP
from vlista_core.models.nalista import NALISTA
from vlista_core.models.vlista import VLISTA

MODELS: dict[str, type[UnfoldedModel]] = {
    "lista": LISTA,
    "lista-cp": LISTACP,
    "alista": ALISTA,
    "nalista": NALISTA,
    "hyperlista": HyperLISTA,
    "ada-lista": AdaLISTA,
    "dlista": DLISTA,
    "a-dlista": ADLISTA,
    "vlista": VLISTA,
}
for model in MODELS.values():
    register(model)

__all__ = [
    "ADLISTA",
    "ALISTA",
    "DLISTA",
    "LISTA",
    "LISTACP",
    "MODELS",
    "NALISTA",
    "VLISTA",
    "AdaLISTA",
    "HyperLISTA",
    "UnfoldedModel",
]
