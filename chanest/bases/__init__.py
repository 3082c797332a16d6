"""What several channel estimators share: the contract, grids of angles, unfolded networks, families of covariances."""
