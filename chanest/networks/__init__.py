"""The nets inside learned estimators."""
