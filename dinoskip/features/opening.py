"""``dinoskip.features.open``: a store by its folder, as short as reading features should be."""

from __future__ import annotations

from dinoskip.features.store import FeatureStore

open = FeatureStore.open
