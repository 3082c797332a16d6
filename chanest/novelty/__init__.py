"""Does the channel still come from what an estimator was trained on? Scores, a detector with a level, changes to try it on."""

from chanest.novelty.changes import CHANGES, change_names, changed_frames
from chanest.novelty.detector import NoveltyDetector, Verdict
from chanest.novelty.scores import SCORES, Score, get_score

__all__ = [
    "CHANGES", "SCORES", "NoveltyDetector", "Score", "Verdict", "change_names", "changed_frames", "get_score",
]  # fmt: skip
