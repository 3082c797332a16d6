"""What kinds of estimators share."""
