"""The networks inside learned estimators, and how they are trained."""
