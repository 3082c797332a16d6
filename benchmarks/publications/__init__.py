"""Published results that can be run again, one file each. A new one is one file here and one line in `PUBLICATIONS`."""

PUBLICATIONS = {
    "diffusion": "publications.diffusion:Diffusion",
    "vae": "publications.vae:VariationalAutoencoder",
    "na-alista": "publications.na_alista:NeurallyAugmented",
    "lista-cpss": "publications.lista_cpss:SupportSelection",
    "sionna": "publications.sionna_tutorial:SionnaTutorial",
}
"""Name on the command line -> "module:class"."""
