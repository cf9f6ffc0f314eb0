"""Sentences of the papers that can be read in several ways: each reading is a setting, one of them is ours, with why.

``docs/concepts/readings.md`` is made of this table by ``python -m studies.readings``, with what each reading does to
a fresh network; ``configs/paper/readings.yaml`` and ``configs/paper/readings_recipe.yaml`` train them.
"""

from __future__ import annotations

from dataclasses import dataclass

CUTTING = "Cutting the Skip"
QUANTISATION = "The Quantization Benefits of Residual-Free Transformers"
_PAPERS = "model.init={name: skipless, alpha: 1.8, beta: 1.0, c: 3.0"  # the constants for ViT-S
_FREE = "model.init={name: residual_free"


@dataclass(frozen=True)
class Reading:
    """One way to read a sentence.

    ``settings`` are a study's, as ``key=value``, over ViT-S without skips. ``variant`` is the network of the shipped
    study that trains it, "" where none does; ``small`` that of the study of minutes (``configs/results``).
    """

    name: str
    settings: tuple[str, ...]
    variant: str = ""
    small: str = ""

    @property
    def small_network(self) -> str:
        """The network in the study of minutes, with its optimizer; AdamW where ``small`` names none."""
        return self.small if "-" in self.small else f"{self.small}-adamw"


@dataclass(frozen=True)
class Sentence:
    """A sentence as a paper prints it, what it leaves open, its readings (ours first), and why that is ours.

    ``unmeasured`` says why a fresh network shows nothing of it; "" where it does.
    """

    name: str
    title: str
    paper: str
    place: str
    quotation: str
    open: str
    readings: tuple[Reading, ...]
    why: str
    unmeasured: str = ""

    @property
    def ours(self) -> Reading:
        """The reading that the settings have by default, or that the paper's configurations name."""
        return self.readings[0]


SENTENCES: tuple[Sentence, ...] = (
    Sentence(
        "scale", "The factor before Q Kᵀ", CUTTING, "eq. 3, again in eqs. 11 and 14 to 20",
        "the attention matrix is A = η(Q Kᵀ)",
        "No factor is printed. Every common attention module, the authors' code included, divides by √d_h, the width "
        "of a head. *The Quantization Benefits* (sec. 4) writes 1/√d, and its d is the width of the model.",
        (
            Reading("1/√d_h", (f"{_PAPERS}, scale: head}}",), "ours", "ours"),
            Reading("none, as printed", (f"{_PAPERS}, scale: none}}",), "scale_none", "scale_none"),
            Reading("1/√d", (f"{_PAPERS}, scale: width}}",), "scale_width", "scale_width"),
        ),
        "The first author's public code divides by √d_h, and α and β come from mimetic initialisation, whose constants "
        "were chosen with that factor. As printed, tokens stay further apart. But attention is nearly singular: its "
        "rows are peaked, and many tokens pick the same other one. Gradients grow from the last block to the first by "
        "orders of magnitude. The factor is folded into the initial W_Q and W_K (`skipless_` says what an optimizer "
        "makes of that), so every reader of the weights computes the same function. The default "
        "stays until trainings decide: [the slots](../results/slots.md) train both.",
    ),
    Sentence(
        "heads", "One matrix a head, or a layer", CUTTING, "eq. 11, with the heads of section 2",
        "W^Q W^Kᵀ = αZ + βI; the projection matrices are divided across h heads, such that W_i^Q is d × d_h",
        "The equation has one d × d matrix a layer, the heads have factors of rank d_h. Either each head has a matrix "
        "of its own, of which it keeps the leading d_h singular triplets, or one matrix is dealt out to the heads.",
        (
            Reading("a matrix a head", (f"{_PAPERS}, heads: top}}",), "ours", "ours"),
            Reading("one a layer, dealt out", (f"{_PAPERS}, heads: split}}",), "heads_split", "heads_split"),
        ),
        "Public code by the authors draws one for each head. Dealt out, a head has a sixth of one matrix, its "
        "tokens attend less to themselves, and they are alike in the late blocks of a fresh network.",
    ),
    Sentence(
        "mlp", "Scale-corrected orthogonal MLPs", CUTTING, "section 6.1",
        "The scaled-corrected uniform orthogonal initialization (Martens et al., 2021) is used for the MLP parameters.",
        "The correction is max(√(out/in), 1) for a matrix that is stored (out, in). Public code by the first author "
        "has none; the code of Martens et al. expects (in, out), and called on the other gives 1 and 2.",
        (
            Reading("corrected: gains 2 and 1", (f"{_PAPERS}, mlp: suo}}",), "ours", "ours"),
            Reading("without the factor: 1 and 1", (f"{_PAPERS}, mlp: orthogonal}}",),
                    "mlp_orthogonal", "mlp_orthogonal"),
            Reading("not at all", (f"{_PAPERS}, mlp: default}}",), small="mlp_default"),
        ),
        "It is what the sentence says. Fresh tokens stay further apart without the factor.",
    ),
    Sentence(
        "plain", "MLPs of the plain skipless rows of table 1", CUTTING, "section 6.1 and table 1",
        "in the skipless models we remove all skip connections [...], and use the proposed initialization for the SA "
        "weights [...]. The scaled-corrected uniform orthogonal initialization [...] is used for the MLP parameters.",
        "Table 1 has rows *skipless* and *skipless + our init*. Whether the MLPs of the first are orthogonal, too, so "
        "that the rows differ by attention alone, is not said.",
        (
            Reading("all by the default", ("model.init={name: trunc_normal}",), "default", "default"),
            Reading("MLPs scaled orthogonal", ("model.init={name: trunc_normal, mlp: suo}",),
                    "default_suo", "default_suo"),
        ),
        "*skipless* reads as a network from which only the skips are gone. Fresh tokens are alike in both.",
    ),
    Sentence(
        "recipe", "The recipe of DINO", CUTTING, "section 6.2",
        "and otherwise follow similar model recipe to the previous subsection",
        "The previous subsection trains classifiers as Xu et al. (2024): AdamW, 4e-3 at batch 4096, weight decay 0.05, "
        "50 epochs of warm-up. Which of it holds for DINO is not said, nor its crops, temperatures or batch.",
        (
            Reading("DINO's own command for ViT-S/16, 300 epochs, without drop path",
                    ("pretrain.preset=dino_vits16_300ep",), "ours-adamw", "ours-adamw"),
            Reading("the classifiers' optimizer and warm-up",
                    ("pretrain.preset=dino_vits16_300ep", "pretrain.batch_size=4096", "pretrain.warmup_epochs=50",
                     "optimizer={name: adamw, lr: 2.5e-4, weight_decay: 0.05, weight_decay_end: 0.05}"),
                    "ours-supervised", "ours-supervised"),
        ),
        "*similar* cannot be the same: the losses differ. A published command has published numbers with skips to "
        "compare with (k-NN 73.3). What section 6.1 says of the model (no drop path, MLPs) is kept. The study varies "
        "the optimizer; batch and warm-up are settings of the command.",
        "A recipe changes no fresh network.",
    ),
    Sentence(
        "soap", "SOAP's learning rate", CUTTING, "section 6.2",
        "We compare results under both AdamW and SOAP optimizers.",
        "No learning rate is printed, of either.",
        (
            Reading("AdamW's", ("optimizer={name: soap, lr: 5.0e-4}",), "ours-soap", "ours-soap"),
            Reading("the default of SOAP's code", ("optimizer={name: soap, lr: 3.0e-3}",),
                    "ours-soap_own", "ours-soap_own"),
            Reading("searched by a short sweep",
                    ("optimizer={name: soap}", "sweep.lr=[1.0e-4, 2.0e-4, 5.0e-4, 1.0e-3, 3.0e-3]",
                     "online={knn: {dataset: imagenet}}")),
        ),
        "One rate for both leaves the optimizer as the only difference. It is not tuned: a comparison of optimizers "
        "at it is no verdict on them.",
        "A learning rate changes no fresh network. The sweep is not trained in the study of minutes: it chooses among "
        "rates, of which the two rows above are two.",
    ),
    Sentence(
        "voc", "Training images of VOC2012", CUTTING, "section 6.2.1",
        "For ADE20k and COCO-Stuff, we randomly sample 3,000 training images due to resource constraints.",
        "VOC2012 has 1,464 training images with masks, 10,582 with the annotations of SBD (`trainaug`). Which of the "
        "two is not said. With 10,582 one would expect 3,000 of them to be drawn, too; with 1,464 there is no need.",
        (
            Reading("trainaug, 10,582", ("data.voc2012.train_list=trainaug",), "voc2012"),
            Reading("train, 1,464", ("data.voc2012.train_list=train",), "voc2012_train"),
        ),
        "Probes of DINOv2 and of others use `trainaug`, so that their numbers can be compared with. Both are data sets "
        "of the study.",
        "It is what a probe is trained on. Neither is in the study of minutes, whose images are synthetic: both "
        "lists are of VOC2012 itself.",
    ),
    Sentence(
        "temperature", "Direction and beginning of the temperature", QUANTISATION, "section 4 (iii)",
        "softmax(τ_l Q Kᵀ / √d), where τ_l = β^-l with β > 1 [...] prevents saturation or collapse",
        "τ_l falls with depth, so attention gets softer: that prevents saturation, and hastens collapse. Whether l "
        "begins with 0 or 1, and whether d is the head's width, is not said.",
        (
            Reading("τ_l multiplies, from l = 1", (f"{_FREE}, beta: 1.1}}",), small="tau"),
            Reading("from l = 0", (f"{_FREE}, beta: 1.1, first_layer: 0}}",), small="tau_from_0"),
            Reading("τ_l divides", (f"{_FREE}, beta: 1.1, mode: divide}}",), small="tau_divides"),
            Reading("d the model's width", (f"{_FREE}, beta: 1.1, alpha_qk: {0.9 * 6**-0.5:.6f}}}",),
                    small="free_width"),
            Reading("no temperature, our default for ViTs", (f"{_FREE}, beta: 1.0}}",), small="product"),
        ),
        "It is the printed formula, with the l of the paper's X_l, which counts from 1. The paper's networks are "
        "causal language models; in a ViT without a causal mask softer attention makes tokens alike sooner, so "
        "`residual_free` leaves the temperature out unless it is asked for.",
    ),
    Sentence(
        "products", "What the scales of products are", QUANTISATION, "section 4 (i)",
        "scaled semi-orthogonal matrix, such that W_i^Q W_i^Kᵀ ≈ α_QK I",
        "Each α is printed as that of a product, and called the scale of a matrix. W^D W^Dᵀ cannot be α_D I: its rank "
        "is too low.",
        (
            Reading("of the product", (f"{_FREE}, reading: product}}",), small="product"),
            Reading("of each factor", (f"{_FREE}, reading: factor}}",), small="factor"),
        ),
        "It is what the equations say; W^D has orthonormal rows times √α_D, the nearest to them that there is.",
    ),
)  # fmt: skip
"""In the order of the papers."""
