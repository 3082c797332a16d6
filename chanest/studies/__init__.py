"""The studies of the command line, one file each. A new one is one file here and one line in `STUDIES`."""

STUDIES = {
    "accuracy": "chanest.studies.accuracy:AccuracyStudy",
    "bench": "chanest.studies.bench:BenchStudy",
    "coverage": "chanest.studies.coverage:CoverageStudy",
    "link": "chanest.studies.link:LinkStudy",
    "novelty": "chanest.studies.novelty:NoveltyStudy",
    "published": "chanest.studies.published:PublishedStudy",
    "tracking": "chanest.studies.tracking:TrackingStudy",
}
"""Name -> "module:class", in the order of a page."""
