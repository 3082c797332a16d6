"""Problems made from data: synthetic vectors and images."""
