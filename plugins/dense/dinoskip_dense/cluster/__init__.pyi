from .config import ClusteringConfig
from .evaluation import evaluate
from .matching import confusion, match, one_to_one, to_the_commonest
from .spaces import Clustering, cosine_clusterings, kmeans_clustering

__all__ = [
    "Clustering",
    "ClusteringConfig",
    "confusion",
    "cosine_clusterings",
    "evaluate",
    "kmeans_clustering",
    "match",
    "one_to_one",
    "to_the_commonest",
]
