from .curves import curves_figure as curves_figure
from .drawing import Figure as Figure
from .networks import (
    network_figures as network_figures,
)
from .networks import (
    signal_figure as signal_figure,
)
from .networks import (
    spectrum_figure as spectrum_figure,
)
from .networks import (
    weights_figure as weights_figure,
)
from .results import (
    blocks_figure as blocks_figure,
)
from .results import (
    depth_figure as depth_figure,
)
from .results import (
    epochs_figure as epochs_figure,
)
from .results import (
    roughness_figure as roughness_figure,
)
from .training import (
    loss_figure as loss_figure,
)
from .training import (
    online_figure as online_figure,
)
from .training import (
    skip_weight_figure as skip_weight_figure,
)
from .training import (
    training_figure as training_figure,
)
