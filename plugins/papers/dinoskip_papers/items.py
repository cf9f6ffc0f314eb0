"""Tables, figures and claims of the four papers: which configuration makes each, or why none does.

``dinoskip paper`` lays them out, and the part "Not made" of docs/fidelity.md is generated from them.
"""

from __future__ import annotations

from visualize.report.papers import PaperItem as Item

TABLE1, TABLE2, TABLE3 = "paper/table1_supervised.yaml", "paper/table2_dino.yaml", "paper/table3_depth.yaml"
TINY, SIZES, FAMILIES = "paper/graying_tiny.yaml", "paper/graying_sizes.yaml", "paper/graying_families.yaml"
SKIPS = "paper/graying_skips.yaml"
VIT, LARGE = "paper/conditioned_table1_vit.yaml", "paper/conditioned_large.yaml"
ROUNDED, OPTIMIZERS = "paper/quantisation.yaml", "paper/quantisation_optimizers.yaml"

CUTTING_THE_SKIP = (
    Item("figure 1", "training loss of ViT-B by AdamW and SOAP", (TABLE1,)),
    Item("table 1", "top-1 of ViT-B on ImageNet-1k", (TABLE1,), table="paper.table1"),
    Item("table 2", "linear segmentation of DINO ViT-S", (TABLE2,), table="paper.table2"),
    Item("figure 2", "segmentation against the epoch", ("paper/figure2_epochs.yaml",)),
    Item("figure 3", "CorLoc by TokenCut, with its table", (TABLE2,), table="paper.figure3"),
    Item("table 3", "segmentation by depth", (TABLE3,), table="paper.table3"),
    Item("table 4", "object discovery by depth", (TABLE3,), table="paper.table4"),
    Item("figure 4", "PCA of patch features, first photographs", (TABLE2,)),
    Item("figure 5", "softmax of peaked and diffuse matrices", ("dinoskip paper",)),
    Item("figure 6", "PCA of patch features, 40 photographs", (TABLE2,)),
    Item("footnote 2", "sensitivity to alpha, beta and c", ("paper/sensitivity.yaml",)),
    Item(
        "equations 5, 6, 8, 9",
        "condition of the whole network's Jacobian through the depth",
        ("dinoskip analyze --data bundled --jacobian",),
        "at one image; above 512 outputs κ is a lower bound; eq. 6 is checked on random blocks (check 40)",
    ),
)

GRAYING = (
    Item(
        "figures 1, 3",
        "training without the skip of attention, or of the FFN",
        (SKIPS,),
        "Tiny-ImageNet alone; the paper also has CIFAR-10 (data.tiny_imagenet.root=CIFAR10)",
        figure="loss",
    ),
    Item(
        "figure 2, supplement B",
        "ConvMixer with and without skips",
        why="ConvMixer-Tiny's sizes are not printed; timm:convmixer_768_32 is near, with or without model.skip",
    ),
    Item(
        "table 1",
        "time of Token Graying by SVD and DCT",
        ("python benchmarks/bench_graying.py",),
        "DCT costs 0.9 % where SVD takes 6.3 times as long, on one core; the paper's are of GPUs",
    ),
    Item("table 2, softmax", "ViT-Ti on Tiny-ImageNet", (TINY,), table="graying.table2"),
    Item("table 2, linear", "the same with linear attention", why="there is no linear attention here"),
    Item(
        "table 3",
        "ViT-B by amplification coefficient",
        ("paper/graying_epsilon.yaml",),
        "the printed coefficients are not legible in our text; those of DCT are ours",
        table="graying.table3",
    ),
    Item("table 4, ViT", "ViT-S and ViT-B with DCT", (SIZES,), table="graying.table4"),
    Item("table 4, others", "Swin-S, CaiT-S, PVT v2-b3", (FAMILIES,), table="graying.table4.families"),
    Item("figures 4, 6", "condition of tokens by layer", (TINY,), figure="kappa"),
    Item(
        "table 5",
        "MAE of ViT-B, fine-tuned",
        ("paper/token_graying.yaml", "paper/mae_finetune.yaml"),
        "fine-tuning normalises before the mean of the patches, not after it",
        table="graying.table5",
    ),
    Item(
        "figure 5",
        "condition of attention's output while training",
        ("paper/graying_epsilon.yaml",),
        "median over blocks, of one image",
        figure="inside-training",
    ),
    Item(
        "figures 7, 8",
        "spectrum of attention's Jacobian",
        (TINY,),
        "neither block, tokens nor variable is printed: here block 1, 32 tokens, by W_Q, W_K and W_V",
        figure="spectrum",
    ),
    Item(
        "supplement C",
        "neural tangent kernel of trained networks",
        why="check 43 shows the spectrum of one untrained attention; no kernel of a trained network is computed",
    ),
)

_EXAMPLE = "docs/examples has a model of a few minutes, which does not test the table"
CONDITIONED = (
    Item(
        "figure 1, ViT-B", "condition of attention's Jacobian and its bound while training", (VIT,),
        figure="inside-training",
    ),
    Item("figures 1, 3, others", "the same of XCiT-M and Nyströmformer",
         why="XCiT's attention is over channels, of which Theorem 3.1 says nothing (conditioned_table1_xcit draws κ of "
             "its outputs), and Nyströmformer is not here"),
    Item("table 1, ViT-B", "top-1 by initialisation", (VIT,), "ViT-B's recipe is not unique in the paper's source",
         "conditioned.table1.vit"),
    Item("table 1, DeiT-B", "the same", ("paper/conditioned_table1_deit.yaml",),
         "without repeated augmentation", "conditioned.table1.deit"),
    Item("table 1, Swin-B", "the same", ("paper/conditioned_table1_swin.yaml",), table="conditioned.table1.swin"),
    Item("table 1, XCiT-M", "the same", ("paper/conditioned_table1_xcit.yaml",),
         "not mimetic (82.6): its logits are between channels", "conditioned.table1.xcit"),
    Item("table 1, DaViT-B", "the same", ("paper/conditioned_table1_davit.yaml",),
         "not mimetic (84.4): half of its attention is over channels", "conditioned.table1.davit"),
    Item("figures 2, 4", "epochs to the default's accuracy", (VIT,), figure="online"),
    Item("figures 5 to 7", "training loss", (VIT,), figure="loss"),
    Item("table 2", "ViT-Ti on Pets, Flowers, CIFAR-10, CIFAR-100",
         tuple(f"paper/conditioned_{name}.yaml" for name in ("pets", "flowers", "cifar10", "cifar100")),
         table="conditioned.table2"),
    Item("ablation", "queries, keys and values conditioned one by one", ("paper/conditioned_ablation.yaml",)),
    Item("table 3", "Mask R-CNN with XCiT-S",
         why="configs/eval/detection.yaml trains such heads by a recipe of ours, without masks of instances"),
    Item("table 4", "Long Range Arena",
         why=f"text, retrieval, pathfinder and images are left out; ListOps: {_EXAMPLE}"),
    Item("table 5", "Crammed BERT on GLUE", why=f"language: {_EXAMPLE}"),
    Item("table 6", "weights selected from a ViT-S",
         ("paper/conditioned_teachers.yaml",
          *(f"paper/conditioned_selection_{name}.yaml" for name in ("food101", "cifar10", "cifar100"))),
         table="conditioned.table6"),
    Item("tables 7 to 11", "GPT-2", why=f"language: {_EXAMPLE}"),
    Item("table 12, ViT-L", "top-1 by initialisation", (LARGE,), table="conditioned.table12"),
    Item("table 13, ViT-G", "the same", (LARGE,), "with model.name=vit_giant_patch14", "conditioned.table13"),
    Item("tables 12, 13, others", "DeiT-L, Swin-L, XCiT-L, DaViT-L and DaViT-G (15 cells)",
         why="a variant takes more than 300 GPU hours and no recipe is printed; with the large network's "
             "model.name a configuration of table 1 trains it"),
)  # fmt: skip

_IMAGES = "the paper's models are of language; here images and k-NN are in their place, and no number is comparable"
QUANTISATION = (
    Item("tables 1 to 4", "accuracy at fewer bits", (ROUNDED,), f"{_IMAGES}; the trained head is not rounded",
         numbers="Rounded weights and activations"),
    Item("figure 3", "loss and kurtosis by optimizer and temperature while training", (OPTIMIZERS,), _IMAGES,
         figure="inside-training"),
    Item("figures 5, 6", "second-order optimizers", (OPTIMIZERS,), _IMAGES, figure="loss"),
    Item("figures 7 to 9", "histograms of activations while training", (ROUNDED, OPTIMIZERS), _IMAGES,
         figure="histograms-training"),
    Item("figures 11, 13, 15", "SQNR, NMSE and negentropy by layer", (ROUNDED,),
         "negentropy is a panel of the figure signals of the study's page", figure="sqnr"),
    Item("Theorem 1's table", "kurtosis of eight language models",
         why='of trained language models, without a threshold for "near-Gaussian"'),
    Item("section 5", "24-layer LLaMA on FineWeb-Edu, eight tasks", why=f"language: {_EXAMPLE}"),
)  # fmt: skip
