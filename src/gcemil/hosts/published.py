"""The authors' weights under our names: one table per host, and a reader that names whatever does not fit.

A row of a table is one tensor of the authors: its name, its shape in named sizes, and our name for it. `{c}` stands for
every output (or every branch); where our name has none, the tensors of all of them are stacked. A size is what the first tensor that has
it says, and every later tensor must agree: `in_dim` and `n_outputs` make the host, others become its options.

One sigmoid output for two classes becomes the two logits (0, x): softmax(0, x) is (1 - sigmoid(x), sigmoid(x)).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gcemil.errors import WeightsError
from gcemil.hosts.host import GateMode, MilHost
from gcemil.hosts.table import create_host

Tensors = dict[str, Tensor]
Sizes = dict[str, int]
Fit = Callable[[Tensor], Tensor]

SMALL = 2.0**-100
"""Scales exactly: the negative class of DSMIL keeps the critical patch of the positive one and has a logit of 0."""
OPEN = 30.0
"""sigmoid(30) is 1 in float32, so a gated attention with this bias and no weight is the plain one exactly."""
N_NAMED = 6
"""How many tensors of one kind a message names."""


@dataclass(frozen=True)
class Row:
    """One tensor of the authors, and its place in our host."""

    theirs: str
    shape: str
    ours: str
    fit: Fit = torch.Tensor.contiguous
    each: str = "n_outputs"
    """The size that `{c}` counts."""


@dataclass(frozen=True)
class WeightLayout:
    """How one published network names its tensors."""

    rows: tuple[Row, ...]
    options: Callable[[Sizes], dict[str, object]] = lambda sizes: {}
    """The options of our class under which it is the authors' network."""
    needs: tuple[str, ...] = ()
    """This layout is for checkpoints that have these tensors."""
    two_classes: Mapping[str, Fit] = field(default_factory=dict)
    """What makes two outputs of one sigmoid, by our names."""
    absent: tuple[str, ...] = ()
    """Tensors of ours that this network has not, and that act on nothing: they are 0."""
    buffers: Mapping[str, float] = field(default_factory=dict)
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True)
class PublishedHost:
    """A host as the authors' weights describe it."""

    name: str
    in_dim: int
    n_outputs: int
    options: Mapping[str, object]
    tensors: Mapping[str, Tensor]
    caveats: tuple[str, ...]
    """What differs from the authors' own predictions, in sentences."""

    def create(
        self, gate_mode: GateMode | None = None, options: Mapping[str, object] | None = None
    ) -> MilHost[Any]:
        """The host with these weights, in evaluation mode; `options` are those that weights do not tell."""
        host = create_host(
            self.name,
            in_dim=self.in_dim,
            n_outputs=self.n_outputs,
            gate_mode=gate_mode,
            options={**(options or {}), **self.options},
        )
        host.load_state_dict({**host.state_dict(), **self.tensors})
        return host.eval()


def read_published(
    name: str, checkpoint: Mapping[Any, Any] | Sequence[Any], *, risk: bool = False
) -> PublishedHost:
    """The authors' checkpoint of a host, already loaded; with `risk` one output is a risk and stays one."""
    # DataParallel puts its word inside the names, and no layout below has it.
    plain = {
        key.replace(".module.", "."): tensor for key, tensor in named_tensors(checkpoint).items()
    }
    theirs = RENAMES.get(name, dict)(plain)
    layout = next(layout for layout in LAYOUTS[name] if set(layout.needs) <= set(theirs))
    ours, sizes = renamed(name, layout, theirs)
    n_outputs = sizes["n_outputs"]
    if n_outputs == 1 and not risk and layout.two_classes:
        ours |= {key: widen(ours[key]) for key, widen in layout.two_classes.items()}
        n_outputs = 2
    if n_outputs == 1:
        # A risk has no classes, so instance heads have no place in our host.
        ours = {key: tensor for key, tensor in ours.items() if not key.startswith("instance_heads")}
    options = layout.options(sizes)
    if layout.absent or layout.buffers:
        # What the authors have no tensor for: zeros of our shapes, and flags.
        own = create_host(
            name, in_dim=sizes["in_dim"], n_outputs=n_outputs, options=options
        ).state_dict()
        ours |= {key: torch.zeros_like(own[key]) for key in layout.absent}
        ours |= {key: torch.full_like(own[key], value) for key, value in layout.buffers.items()}
    return PublishedHost(name, sizes["in_dim"], n_outputs, options, ours, layout.caveats)


def named_tensors(checkpoint: Mapping[Any, Any] | Sequence[Any]) -> Tensors:
    """Every tensor by name; a word (in a list its place) before `/` names the network where there are several."""
    if not isinstance(checkpoint, Mapping):
        checkpoint = {str(place): part for place, part in enumerate(checkpoint)}
    networks = {
        key: value
        for key, value in checkpoint.items()
        if isinstance(value, Mapping)
        and len(value) > 0
        and all(
            isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in value.items()
        )
    }
    if not networks:
        networks = {
            "": {str(key): value for key, value in checkpoint.items() if isinstance(value, Tensor)}
        }
    elif len(networks) == 1:
        networks = {"": next(iter(networks.values()))}
    return {
        f"{network}/{key}".lstrip("/"): tensor.detach().float()
        for network, tensors in networks.items()
        for key, tensor in without_prefix(tensors).items()
    }


def without_prefix(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Names without what a wrapper of the whole network put in front (DataParallel, Lightning)."""
    for prefix in ("module.", "model."):
        if tensors and all(key.startswith(prefix) for key in tensors):
            tensors = {key.removeprefix(prefix): tensor for key, tensor in tensors.items()}
    return tensors


def renamed(name: str, layout: WeightLayout, theirs: Tensors) -> tuple[Tensors, Sizes]:
    """Our tensors, and the sizes read from theirs; everything that does not fit is listed at once."""
    sizes: Sizes = {}
    missing: list[str] = []
    misshapen: list[str] = []
    used: set[str] = set()

    def read(key: str, shape: str) -> Tensor | None:
        used.add(key)
        if key not in theirs:
            missing.append(key)
            return None
        if expected := disagreement(theirs[key], shape.split(), sizes):
            misshapen.append(f"{key} {tuple(theirs[key].shape)} where ({expected}) was expected")
            return None
        return theirs[key]

    ours: Tensors = {}
    # Rows that hold for every output come last: the others say how many there are.
    for row in sorted(layout.rows, key=lambda one: "{c}" in one.theirs):
        outputs = range(sizes.get(row.each, 1)) if "{c}" in row.theirs else range(1)
        tensors = [read(row.theirs.replace("{c}", str(c)), row.shape) for c in outputs]
        fitted = [row.fit(tensor) for tensor in tensors if tensor is not None]
        if "{c}" in row.ours:
            ours |= {row.ours.replace("{c}", str(c)): tensor for c, tensor in enumerate(fitted)}
        elif fitted:
            ours[row.ours] = torch.stack(fitted) if "{c}" in row.theirs else fitted[0]
    if misfit := describe_misfit(missing, sorted(set(theirs) - used), misshapen):
        raise WeightsError(
            f"These are not the published weights of '{name}': {misfit}. Nothing was loaded."
        )
    return ours, sizes


def disagreement(tensor: Tensor, shape: Sequence[str], sizes: Sizes) -> str | None:
    """The shape expected where the tensor has another; sizes that are still unknown are learned from it."""
    learned = dict(sizes)
    fits = len(shape) == tensor.ndim
    for text, length in zip(shape, tensor.shape, strict=False):
        if text.isidentifier() and text not in learned:
            learned[text] = length
        fits = fits and expected_length(text, learned) == length
    if fits:
        sizes |= learned
        return None
    return ", ".join(str(expected_length(text, sizes) or text) for text in shape)


def expected_length(text: str, sizes: Sizes) -> int | None:
    """'width', '2*width', 'width/2' or a number; None where the size is not known yet."""
    if text.isdigit():
        return int(text)
    factor, name, divisor = re.fullmatch(r"(?:(\d+)\*)?(\w+?)(?:/(\d+))?", text).groups()  # type: ignore[union-attr]
    return None if name not in sizes else sizes[name] * int(factor or 1) // int(divisor or 1)


def describe_misfit(
    missing: Sequence[str], left_over: Sequence[str], misshapen: Sequence[str]
) -> str:
    """What does not fit, kind by kind; empty where everything does."""
    kinds = {"missing": missing, "left over": left_over, "of another shape": misshapen}
    return "; ".join(f"{kind}: {listed(names)}" for kind, names in kinds.items() if names)


def listed(names: Sequence[str]) -> str:
    more = len(names) - N_NAMED
    return ", ".join(names[:N_NAMED]) + (f" and {more} more" if more > 0 else "")


def layer(theirs: str, shape: str, ours: str) -> tuple[Row, Row]:
    """Weight and bias of one layer; the bias is as long as the first axis of the weight."""
    return (
        Row(f"{theirs}.weight", shape, f"{ours}.weight"),
        Row(f"{theirs}.bias", shape.split()[0], f"{ours}.bias"),
    )


def dense(theirs: str, shape: str, ours: str) -> tuple[Row, Row]:
    """The same for Keras, whose kernels are (in, out)."""
    return (
        Row(f"{theirs}.kernel", shape, f"{ours}.weight", transposed),
        Row(f"{theirs}.bias", shape.split()[1], f"{ours}.bias"),
    )


def transposed(tensor: Tensor) -> Tensor:
    return tensor.T.contiguous()


def first_row(tensor: Tensor) -> Tensor:
    """What a layer with one output has for it."""
    return tensor[0]


def keras_convolution(kernel: Tensor) -> Tensor:
    """(33, 1, inputs per group, outputs) as (outputs, inputs per group, 33, 1)."""
    return kernel.permute(3, 2, 0, 1).contiguous()


def prepend_zero_logit(tensor: Tensor) -> Tensor:
    """A first output that is always 0."""
    return torch.cat([torch.zeros_like(tensor), tensor])


def prepend_small_logit(tensor: Tensor) -> Tensor:
    """A first output that ranks as the second does and is 0 beside it."""
    return torch.cat([SMALL * tensor, tensor])


def from_second_stream(weight: Tensor) -> Tensor:
    """DSMIL's bag head for two streams; it reads only the second."""
    return prepend_zero_logit(torch.cat([torch.zeros_like(weight), weight], dim=1))


def without_confounders(weight: Tensor) -> Tensor:
    """IBMIL's head of the first stage as one that also reads the mixture of the dictionary, which is 0 there."""
    return torch.cat([weight, torch.zeros_like(weight)], dim=1)


def mhim_network(name: str) -> tuple[Row, ...]:
    attention = f"{name}/online_encoder.attention.attention"
    return (
        *layer(f"{name}/patch_to_emb.0", "width in_dim", f"{name}.project.0"),
        Row(f"{attention}.0.weight", "hidden width", f"{name}.attention.0.weight"),
        Row(f"{attention}.2.weight", "1 hidden", f"{name}.attention.2.weight"),
        *layer(f"{name}/predictor", "n_outputs width", f"{name}.head"),
    )


def transmil_layer(theirs: str, ours: str) -> tuple[Row, ...]:
    return (
        *layer(f"{theirs}.norm", "width", f"{ours}_norm"),
        Row(f"{theirs}.attn.to_qkv.weight", "3*width width", f"{ours}.qkv.weight"),
        *layer(f"{theirs}.attn.to_out.0", "width width", f"{ours}.project.0"),
        Row(f"{theirs}.attn.res_conv.weight", "heads 1 33 1", f"{ours}.value_conv.weight"),
    )


def chosen(*names: str) -> Callable[[Sizes], dict[str, object]]:
    """Sizes that are options of our class under the same name."""
    return lambda sizes: {name: sizes[name] for name in names}


WITHOUT_GATE: dict[str, Any] = {
    "absent": ("attention.gate.weight",),
    "buffers": {"attention.gate.bias": OPEN},
}


def attention_pool(
    project: str,
    content: str,
    gate: str | None,
    score: str,
    head: tuple[Row, ...],
    *,
    branches: str = "1",
    **layout: Any,
) -> WeightLayout:
    """A projection, an attention with a gate or without one, and a head."""
    rows = (
        *layer(project, "width in_dim", "project.0"),
        *layer(content, "hidden width", "attention.content"),
        *(layer(gate, "hidden width", "attention.gate") if gate else ()),
        *layer(score, f"{branches} hidden", "attention.score"),
        *head,
    )
    shared = {"options": chosen("width", "hidden")} | ({} if gate else WITHOUT_GATE)
    return WeightLayout(rows=rows, **{**shared, **layout})


ABMIL_CLASSES: dict[str, Any] = {
    "two_classes": {"head.weight": prepend_zero_logit, "head.bias": prepend_zero_logit}
}
ABMIL_HEAD = layer("classifier.0", "n_outputs width", "head")
MIL_LAB_HEAD = layer("classifier", "n_outputs width", "head")
ABMIL = attention_pool(
    "feature_extractor_part2.0",
    "attention_V.0",
    "attention_U.0",
    "attention_w",
    ABMIL_HEAD,
    **ABMIL_CLASSES,
)
ABMIL_PLAIN = attention_pool(
    "feature_extractor_part2.0", "attention.0", None, "attention.2", ABMIL_HEAD,
    needs=("attention.0.weight",), **ABMIL_CLASSES,
)  # fmt: skip
ABMIL_MIL_LAB = attention_pool(
    "patch_embed.0", "global_attn.attention_a.0", "global_attn.attention_b.0", "global_attn.attention_c",
    MIL_LAB_HEAD, needs=("patch_embed.0.weight", "global_attn.attention_c.weight"), **ABMIL_CLASSES,
)  # fmt: skip
ABMIL_MIL_LAB_PLAIN = attention_pool(
    "patch_embed.0", "global_attn.0", None, "global_attn.3", MIL_LAB_HEAD,
    needs=("patch_embed.0.weight", "global_attn.0.weight"), **ABMIL_CLASSES,
)  # fmt: skip


def torchmil_abmil(*, gated: bool, projected: bool) -> WeightLayout:
    """torchmil's ABMIL, on features or behind a linear layer with ReLU, with gated attention or the plain one."""
    width = "width" if projected else "in_dim"
    gate = layer("pool.fc_gated", f"hidden {width}", "attention.gate") if gated else ()
    project = layer("feat_ext.0", "width in_dim", "project.0") if projected else ()
    options = (
        chosen("width", "hidden")
        if projected
        else lambda sizes: {"width": None, "hidden": sizes["hidden"]}
    )
    absent = (
        ("attention.score.bias",) if gated else ("attention.score.bias", *WITHOUT_GATE["absent"])
    )
    return WeightLayout(
        rows=(
            *project,
            *layer("pool.fc1", f"hidden {width}", "attention.content"),
            *gate,
            Row("pool.fc2.weight", "1 hidden", "attention.score.weight"),
            *layer("classifier", f"n_outputs {width}", "head"),
        ),
        options=options,
        needs=(
            "pool.fc1.weight",
            *(["feat_ext.0.weight"] if projected else []),
            *(["pool.fc_gated.weight"] if gated else []),
        ),
        **ABMIL_CLASSES,
        absent=absent,
        buffers={} if gated else WITHOUT_GATE["buffers"],
        caveats=(
            "Weights do not tell the activations: tanh in the attention, and ReLU behind a layer in front of it.",
        ),
    )


ABMIL_TORCHMIL = tuple(
    torchmil_abmil(gated=gated, projected=projected)
    for gated in (True, False)
    for projected in (True, False)
)
CLAM_ATTENTION = (
    "attention_net.0",
    "attention_net.3.attention_a.0",
    "attention_net.3.attention_b.0",
)
CLAM_PLAIN_ATTENTION = ("attention_net.0", "attention_net.3.0", None)
CLAM_HEADS = (
    *layer("classifiers", "n_outputs width", "head"),
    *layer("instance_classifiers.{c}", "2 width", "instance_heads.{c}"),
)
CLAM_MB_HEADS = (
    Row("classifiers.{c}.weight", "1 width", "head.weight", first_row),
    Row("classifiers.{c}.bias", "1", "head.bias", first_row),
    *layer("instance_classifiers.{c}", "2 width", "instance_heads.{c}"),
)
CLAM_SB, CLAM_MB = (
    attention_pool(*CLAM_ATTENTION, "attention_net.3.attention_c", heads, branches=branches)
    for heads, branches in ((CLAM_HEADS, "1"), (CLAM_MB_HEADS, "n_outputs"))
)
CLAM_SB_PLAIN, CLAM_MB_PLAIN = (
    attention_pool(
        *CLAM_PLAIN_ATTENTION,
        "attention_net.3.3",
        heads,
        branches=branches,
        needs=("attention_net.3.0.weight",),
    )
    for heads, branches in ((CLAM_HEADS, "1"), (CLAM_MB_HEADS, "n_outputs"))
)
ACMIL = WeightLayout(
    rows=(
        Row("dimreduction.fc1.weight", "width in_dim", "project.0.weight"),
        *layer("attention.attention_V.0", "hidden width", "attention.content"),
        *layer("attention.attention_U.0", "hidden width", "attention.gate"),
        *layer("attention.attention_weights", "n_branches hidden", "attention.score"),
        *layer("Slide_classifier.fc", "n_outputs width", "head"),
        Row(
            "classifier.{c}.fc.weight",
            "n_outputs width",
            "branch_heads.{c}.weight",
            each="n_branches",
        ),
        Row("classifier.{c}.fc.bias", "n_outputs", "branch_heads.{c}.bias", each="n_branches"),
    ),
    options=chosen("width", "hidden", "n_branches"),
)
TRANSMIL = WeightLayout(
    rows=(
        Row("cls_token", "1 1 width", "class_token", lambda token: token.flatten(0, 1)),
        *layer("_fc1.0", "width in_dim", "project.0"),
        *transmil_layer("layer1", "first"),
        *transmil_layer("layer2", "second"),
        *layer("pos_layer.proj", "width 1 7 7", "position.wide"),
        *layer("pos_layer.proj1", "width 1 5 5", "position.middle"),
        *layer("pos_layer.proj2", "width 1 3 3", "position.narrow"),
        *layer("norm", "width", "norm"),
        *layer("_fc2", "n_outputs width", "head"),
    ),
    options=chosen("width", "heads"),
    caveats=(
        "Weights trained with nystrom-attention 0.0.9, which the authors pin, answer otherwise there: that version "
        "returns padding rows whenever it pads.",
    ),
)
DSMIL_STREAMS = (
    *layer("i_classifier.fc.0", "n_outputs in_dim", "instance_head"),
    *layer("b_classifier.q.0", "hidden in_dim", "query.0"),
    *layer("b_classifier.q.2", "hidden hidden", "query.2"),
    Row(
        "b_classifier.fcc.weight",
        "n_outputs n_outputs in_dim",
        "head.weight",
        lambda weight: weight.flatten(1),
    ),
    Row("b_classifier.fcc.bias", "n_outputs", "head.bias"),
)
DSMIL = WeightLayout(
    rows=DSMIL_STREAMS,
    options=chosen("hidden"),
    two_classes={
        "instance_head.weight": prepend_small_logit,
        "instance_head.bias": prepend_small_logit,
        "head.weight": from_second_stream,
        "head.bias": prepend_zero_logit,
    },
    caveats=(
        "The authors read several outputs as one sigmoid each; here their softmax is the prediction. The logits agree.",
    ),
)
DSMIL_VALUES = replace(
    DSMIL,
    rows=(*DSMIL_STREAMS, *layer("b_classifier.v.1", "in_dim in_dim", "value.0")),
    options=lambda sizes: {"hidden": sizes["hidden"], "value_layer": True},
    needs=("b_classifier.v.1.weight",),
)
DTFD = WeightLayout(
    rows=(
        Row("dim_reduction/fc1.weight", "width in_dim", "project.0.weight"),
        *layer("attention/attention_V.0", "hidden width", "attention.content"),
        *layer("attention/attention_U.0", "hidden width", "attention.gate"),
        *layer("attention/attention_weights", "1 hidden", "attention.score"),
        *layer("classifier/fc", "n_outputs width", "group_head"),
        *layer("att_classifier/attention.attention_V.0", "hidden width", "bag_attention.content"),
        *layer("att_classifier/attention.attention_U.0", "hidden width", "bag_attention.gate"),
        *layer("att_classifier/attention.attention_weights", "1 hidden", "bag_attention.score"),
        *layer("att_classifier/classifier.fc", "n_outputs width", "head"),
    ),
    options=chosen("width", "hidden"),
    caveats=(
        "The authors split a bag at random in evaluation too; here the place of a patch decides its pseudo-bag.",
        "Weights do not tell how pseudo-bags are distilled: afs, unless the option distillation says max or maxmin.",
    ),
)
IBMIL_ATTENTION = (
    *layer("attention.0", "hidden in_dim", "attention.0"),
    *layer("attention.2", "1 hidden", "attention.2"),
)
IBMIL = WeightLayout(
    rows=(
        *IBMIL_ATTENTION,
        *layer("W_q", "key_width in_dim", "query"),
        *layer("W_k", "key_width in_dim", "key"),
        Row("confounder_feat", "n_confounders in_dim", "confounders"),
        Row("classifier.bias", "n_outputs", "head.bias"),
        Row("classifier.weight", "n_outputs 2*in_dim", "head.weight"),
    ),
    options=lambda sizes: {"width": None, **chosen("hidden", "key_width", "n_confounders")(sizes)},
    needs=("confounder_feat",),
)
IBMIL_FIRST_STAGE = WeightLayout(
    rows=(
        *IBMIL_ATTENTION,
        Row("classifier.bias", "n_outputs", "head.bias"),
        Row("classifier.weight", "n_outputs in_dim", "head.weight", without_confounders),
    ),
    options=lambda sizes: {"width": None, **chosen("hidden")(sizes)},
    absent=("query.weight", "query.bias", "key.weight", "key.bias", "confounders"),
)
MHIM = WeightLayout(
    rows=(*mhim_network("student"), *mhim_network("teacher")),
    options=chosen("width", "hidden"),
    buffers={"student_stage": 1},
)
CAMIL = WeightLayout(
    rows=(
        Row("encoder.custom_att.wq", "in_dim in_dim/2", "query.weight", transposed),
        Row("encoder.custom_att.wk", "in_dim in_dim/2", "key.weight", transposed),
        *dense("encoder.wv", "in_dim in_dim", "value"),
        Row("encoder.nyst_att.to_qkv.kernel", "in_dim 3*in_dim", "context.qkv.weight", transposed),
        *dense("encoder.nyst_att.to_out", "in_dim in_dim", "context.project.0"),
        Row(
            "encoder.nyst_att.res_conv.kernel",
            "33 1 8 64",
            "context.value_conv.weight",
            keras_convolution,
        ),
        Row("attcls.v", "in_dim hidden", "pool_content.weight", transposed),
        Row("attcls.u", "in_dim hidden", "pool_gate.weight", transposed),
        Row("attcls.w", "hidden 1", "pool_score.weight", transposed),
        *dense("class_fc", "in_dim n_outputs", "head"),
    ),
    options=lambda sizes: {"width": None, "hidden": sizes["hidden"], "convolution": "heads"},
    two_classes=ABMIL.two_classes,
)
HDMIL = attention_pool(
    *CLAM_ATTENTION,
    "attention_net.3.attention_c",
    (
        Row("classifiers.{c}.act_fun.0.cheby_coeffs", "width 1 terms", "bag_heads.coefficients"),
        Row(
            "instance_classifiers.{c}.act_fun.0.cheby_coeffs",
            "width 2 terms",
            "instance_heads.coefficients",
        ),
    ),
    branches="n_outputs",
    options=lambda sizes: {**chosen("width", "hidden")(sizes), "degree": sizes["terms"] - 1},
)

LAYOUTS: dict[str, tuple[WeightLayout, ...]] = {
    "abmil": (ABMIL_PLAIN, ABMIL_MIL_LAB, ABMIL_MIL_LAB_PLAIN, *ABMIL_TORCHMIL, ABMIL),
    "clam_sb": (CLAM_SB_PLAIN, CLAM_SB),
    "clam_mb": (CLAM_MB_PLAIN, CLAM_MB),
    "acmil": (ACMIL,),
    "transmil": (TRANSMIL,),
    "dsmil": (DSMIL_VALUES, DSMIL),
    "dtfd": (DTFD,),
    "ibmil": (IBMIL, IBMIL_FIRST_STAGE),
    "mhim": (MHIM,),
    "camil": (CAMIL,),
    "hdmil": (HDMIL,),
}


def clam_names(theirs: Tensors) -> Tensors:
    """Without the labels of the instance loss.

    Without dropout the attention stands one place further to the front of its list, and so does the last layer of the
    plain attention.
    """
    renamed_tensors = {}
    for key, tensor in theirs.items():
        name = re.sub(r"^attention_net\.2\.", "attention_net.3.", key)
        name = re.sub(r"^attention_net\.3\.2\.", "attention_net.3.3.", name)
        if not name.startswith("instance_loss_fn."):
            renamed_tensors[name] = tensor
    return renamed_tensors


def dtfd_names(theirs: Tensors) -> Tensors:
    """Modules that stand in a list, or under other words, are known by what only they hold."""
    marks = {
        "fc1.weight": "dim_reduction",
        "attention_V.0.weight": "attention",
        "fc.weight": "classifier",
        "classifier.fc.weight": "att_classifier",
    }
    split = {key: key.partition("/") for key in theirs}
    words = {
        network: marks[name] for network, slash, name in split.values() if slash and name in marks
    }
    return {
        words.get(network, network) + slash + name: theirs[key]
        for key, (network, slash, name) in split.items()
    }


def mhim_names(theirs: Tensors) -> Tensors:
    """The student is called 'model' in the authors' files, or stands alone; it is its own teacher then."""
    named = {
        (key if "/" in key else f"student/{key}").replace("model/", "student/", 1): tensor
        for key, tensor in theirs.items()
    }
    if any(key.startswith("teacher/") for key in named):
        return named
    return named | {key.replace("student/", "teacher/", 1): tensor for key, tensor in named.items()}


RENAMES: dict[str, Callable[[Tensors], Tensors]] = {
    "clam_sb": clam_names,
    "clam_mb": clam_names,
    "dtfd": dtfd_names,
    "hdmil": clam_names,
    "mhim": mhim_names,
}
