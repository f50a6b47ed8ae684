"""The authors' weights under our names: one table per host, and a strict reader.

A row of a table is one tensor of the authors: its name, its shape in named sizes, and our name for
it. `{c}` counts the outputs and `{k}` the branches; where our name has neither, the tensors of all
of them are stacked. A size is what the first tensor that has it shows, and every later tensor must
agree: `in_dim` and `n_outputs` make the host, others become its options.

One sigmoid output for two classes becomes two logits (0, x): softmax(0, x) is (1 - sigmoid(x),
sigmoid(x)).
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
"""Scales exactly: DSMIL's negative class keeps the critical patch, at logit 0."""
OPEN = 30.0
"""sigmoid(30) is 1 in float32: with this bias and no weight the gate is open."""
N_NAMED = 6
"""How many tensors of one kind a message names."""


@dataclass(frozen=True)
class Row:
    """One tensor of the authors, and its place in our host."""

    theirs: str
    shape: str
    ours: str
    fit: Fit = torch.Tensor.contiguous

    @property
    def counted(self) -> str | None:
        """The size that a placeholder in the authors' name counts."""
        counts = {"{c}": "n_outputs", "{k}": "n_branches"}
        return next((size for mark, size in counts.items() if mark in self.theirs), None)


@dataclass(frozen=True)
class WeightLayout:
    """How one published network names its tensors."""

    rows: tuple[Row, ...]
    options: Callable[[Sizes], dict[str, object]]
    """The options of our class under which it is the authors' network."""
    two_classes: Mapping[str, Fit] = field(default_factory=dict)
    """What makes two outputs of one sigmoid, by our names."""
    absent: tuple[str, ...] = ()
    """Tensors of ours that this network does not have: they are 0 and act on nothing."""
    buffers: Mapping[str, float] = field(default_factory=dict)
    caveats: tuple[str, ...] = ()

    def count_misfits(self, theirs: Tensors) -> int:
        """Tensors that only the table or only the checkpoint names."""
        return len({number(row.theirs, 0) for row in self.rows} ^ set(theirs))


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
        """The host with these weights, in evaluation mode; `options` are those no weight shows."""
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
    """The authors' loaded checkpoint of a host; with `risk` one output is a risk and stays one."""
    # DataParallel puts its word inside the names, and no layout below has it.
    plain = {
        key.replace(".module.", "."): tensor for key, tensor in named_tensors(checkpoint).items()
    }
    theirs = RENAMES.get(name, dict)(plain)
    layout = min(LAYOUTS[name], key=lambda layout: layout.count_misfits(theirs))
    ours, sizes = rename_tensors(name, layout, theirs)
    n_outputs = sizes["n_outputs"]
    if n_outputs == 1 and not risk and layout.two_classes:
        ours |= {key: widen(ours[key]) for key, widen in layout.two_classes.items()}
        n_outputs = 2
    if n_outputs == 1:
        # A risk has no classes, so instance heads have no place in our host.
        ours = {key: tensor for key, tensor in ours.items() if not key.startswith("instance_heads")}
    options = layout.options(sizes)
    if layout.absent or layout.buffers:
        own = create_host(name, in_dim=sizes["in_dim"], n_outputs=n_outputs, options=options)
        values = {**dict.fromkeys(layout.absent, 0.0), **layout.buffers}
        shapes = own.state_dict()
        ours |= {key: torch.full_like(shapes[key], value) for key, value in values.items()}
    return PublishedHost(name, sizes["in_dim"], n_outputs, options, ours, layout.caveats)


def named_tensors(checkpoint: Mapping[Any, Any] | Sequence[Any]) -> Tensors:
    """Every tensor by name; of several networks, "network/name" (in a list its place)."""
    if not isinstance(checkpoint, Mapping):
        checkpoint = {str(place): part for place, part in enumerate(checkpoint)}
    networks = {key: part for key, part in checkpoint.items() if is_state_dict(part)}
    if not networks:
        networks = {"": {str(k): v for k, v in checkpoint.items() if isinstance(v, Tensor)}}
    tensors = {}
    for network, named in networks.items():
        # What a wrapper of the whole network put in front (DataParallel, Lightning).
        for prefix in ("module.", "model."):
            if named and all(key.startswith(prefix) for key in named):
                named = {key.removeprefix(prefix): tensor for key, tensor in named.items()}
        front = f"{network}/" if len(networks) > 1 else ""
        tensors.update({front + key: tensor.detach().float() for key, tensor in named.items()})
    return tensors


def is_state_dict(part: object) -> bool:
    return (
        isinstance(part, Mapping)
        and len(part) > 0
        and all(isinstance(key, str) and isinstance(one, Tensor) for key, one in part.items())
    )


def rename_tensors(name: str, layout: WeightLayout, theirs: Tensors) -> tuple[Tensors, Sizes]:
    """Our tensors, and the sizes read from theirs; all misfits are listed at once."""
    sizes: Sizes = {}
    missing: list[str] = []
    misshapen: list[str] = []
    left_over = set(theirs)
    ours: Tensors = {}
    # Rows that hold for every output come last: the others show how many there are.
    for row in sorted(layout.rows, key=lambda one: one.counted is not None):
        fitted = []
        for place in range(sizes.get(row.counted, 1) if row.counted else 1):
            key = number(row.theirs, place)
            left_over.discard(key)
            if key not in theirs:
                missing.append(key)
            elif expected := disagreement(theirs[key], row.shape.split(), sizes):
                shape = tuple(theirs[key].shape)
                misshapen.append(f"{key} {shape} where ({expected}) was expected")
            else:
                fitted.append(row.fit(theirs[key]))
        if number(row.ours, 0) != row.ours:
            ours |= {number(row.ours, place): tensor for place, tensor in enumerate(fitted)}
        elif fitted:
            ours[row.ours] = torch.stack(fitted) if row.counted else fitted[0]
    if misfit := describe_misfit(missing, sorted(left_over), misshapen):
        raise WeightsError(
            f"These are not the published weights of '{name}': {misfit}. Nothing was loaded."
        )
    return ours, sizes


def number(name: str, place: int) -> str:
    """The name of the tensor of one output or branch."""
    return name.replace("{c}", str(place)).replace("{k}", str(place))


def disagreement(tensor: Tensor, shape: Sequence[str], sizes: Sizes) -> str | None:
    """The shape expected where the tensor has another; unknown sizes are learned from it."""
    learned = dict(sizes)
    fits = len(shape) == tensor.ndim
    for text, length in zip(shape, tensor.shape, strict=False):
        if text.isidentifier():
            learned.setdefault(text, length)
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


# What a tensor of the authors becomes.


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
    """IBMIL's head of the first stage, which also reads the mixture of an empty dictionary."""
    return torch.cat([weight, torch.zeros_like(weight)], dim=1)


def chosen(*names: str, **fixed: object) -> Callable[[Sizes], dict[str, object]]:
    """Sizes that are options under the same name, and fixed options."""
    return lambda sizes: {name: sizes[name] for name in names} | fixed


# The tables


def layer(theirs: str, shape: str, ours: str, *, bias: bool = True) -> tuple[Row, ...]:
    """Weight and bias of one layer; the bias is as long as the first axis of the weight."""
    weight = Row(f"{theirs}.weight", shape, f"{ours}.weight")
    return (weight, Row(f"{theirs}.bias", shape.split()[0], f"{ours}.bias"))[: 1 + bias]


def attention_pool(
    project: str | None,
    content: str,
    gate: str | None,
    score: str,
    head: tuple[Row, ...],
    *,
    branches: str = "1",
    score_bias: bool = True,
    **layout: Any,
) -> WeightLayout:
    """An attention with a gate or the plain one, behind a projection or not, and a head."""
    width = "width" if project else "in_dim"
    rows = (
        *(layer(project, "width in_dim", "project.0") if project else ()),
        *layer(content, f"hidden {width}", "attention.content"),
        *(layer(gate, f"hidden {width}", "attention.gate") if gate else ()),
        *layer(score, f"{branches} hidden", "attention.score", bias=score_bias),
        *head,
    )
    absent = () if score_bias else ("attention.score.bias",)
    layout = {
        "options": chosen("width", "hidden") if project else chosen("hidden", width=None),
        "absent": absent if gate else (*absent, "attention.gate.weight"),
        "buffers": {} if gate else {"attention.gate.bias": OPEN},
        **layout,
    }
    return WeightLayout(rows=rows, **layout)


HEAD_OF_TWO: dict[str, Fit] = dict.fromkeys(("head.weight", "head.bias"), prepend_zero_logit)


ABMIL_PLACES: tuple[tuple[str | None, str, str | None, str, str], ...] = (
    # The authors' names, with a gate and without; MIL-Lab's; torchmil's, with a projection or not.
    ("feature_extractor_part2.0", "attention_V.0", "attention_U.0", "attention_w", "classifier.0"),
    ("feature_extractor_part2.0", "attention.0", None, "attention.2", "classifier.0"),
    (
        "patch_embed.0",
        "global_attn.attention_a.0",
        "global_attn.attention_b.0",
        "global_attn.attention_c",
        "classifier",
    ),
    ("patch_embed.0", "global_attn.0", None, "global_attn.3", "classifier"),
    ("feat_ext.0", "pool.fc1", "pool.fc_gated", "pool.fc2", "classifier"),
    ("feat_ext.0", "pool.fc1", None, "pool.fc2", "classifier"),
    (None, "pool.fc1", "pool.fc_gated", "pool.fc2", "classifier"),
    (None, "pool.fc1", None, "pool.fc2", "classifier"),
)
TORCHMIL_CAVEAT = (
    "The weights do not state the activations: tanh in the attention, "
    "and ReLU behind a layer in front of it."
)


def abmil_layout(
    project: str | None, content: str, gate: str | None, score: str, head: str
) -> WeightLayout:
    of_torchmil = content == "pool.fc1"
    return attention_pool(
        project,
        content,
        gate,
        score,
        layer(head, "n_outputs width" if project else "n_outputs in_dim", "head"),
        score_bias=not of_torchmil,
        two_classes=HEAD_OF_TWO,
        caveats=(TORCHMIL_CAVEAT,) if of_torchmil else (),
    )


CLAM_INSTANCES = layer("instance_classifiers.{c}", "2 width", "instance_heads.{c}")
CLAM_SB_HEADS = (*layer("classifiers", "n_outputs width", "head"), *CLAM_INSTANCES)
CLAM_MB_HEADS = (
    Row("classifiers.{c}.weight", "1 width", "head.weight", lambda rows: rows[0]),
    Row("classifiers.{c}.bias", "1", "head.bias", lambda rows: rows[0]),
    *CLAM_INSTANCES,
)
GATED_CLAM = (
    "attention_net.0",
    "attention_net.3.attention_a.0",
    "attention_net.3.attention_b.0",
    "attention_net.3.attention_c",
)
PLAIN_CLAM = ("attention_net.0", "attention_net.3.0", None, "attention_net.3.3")
CLAM_PLACES: tuple[tuple[str, str, str | None, str], ...] = (GATED_CLAM, PLAIN_CLAM)
HDMIL = attention_pool(
    *GATED_CLAM,
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


def gated_attention(theirs: str, ours: str, branches: str = "1") -> tuple[Row, ...]:
    """The gated attention of ACMIL and DTFD."""
    return (
        *layer(f"{theirs}attention_V.0", "hidden width", f"{ours}.content"),
        *layer(f"{theirs}attention_U.0", "hidden width", f"{ours}.gate"),
        *layer(f"{theirs}attention_weights", f"{branches} hidden", f"{ours}.score"),
    )


ACMIL = WeightLayout(
    rows=(
        Row("dimreduction.fc1.weight", "width in_dim", "project.0.weight"),
        *gated_attention("attention.", "attention", "n_branches"),
        *layer("Slide_classifier.fc", "n_outputs width", "head"),
        *layer("classifier.{k}.fc", "n_outputs width", "branch_heads.{k}"),
    ),
    options=chosen("width", "hidden", "n_branches"),
)
DTFD = WeightLayout(
    rows=(
        Row("dim_reduction/fc1.weight", "width in_dim", "project.0.weight"),
        *gated_attention("attention/", "attention"),
        *layer("classifier/fc", "n_outputs width", "group_head"),
        *gated_attention("att_classifier/attention.", "bag_attention"),
        *layer("att_classifier/classifier.fc", "n_outputs width", "head"),
    ),
    options=chosen("width", "hidden"),
    caveats=(
        "The authors split a bag at random in evaluation too; here the place of a patch decides "
        "its pseudo-bag.",
        "The weights do not state how pseudo-bags are distilled: afs, unless the option "
        "distillation is max or maxmin.",
    ),
)


def transmil_layer(theirs: str, ours: str) -> tuple[Row, ...]:
    return (
        *layer(f"{theirs}.norm", "width", f"{ours}_norm"),
        *layer(f"{theirs}.attn.to_qkv", "3*width width", f"{ours}.qkv", bias=False),
        *layer(f"{theirs}.attn.to_out.0", "width width", f"{ours}.project.0"),
        *layer(f"{theirs}.attn.res_conv", "heads 1 33 1", f"{ours}.value_conv", bias=False),
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
        "Weights trained with nystrom-attention 0.0.9, which the authors pin, give other outputs "
        "there: that version returns padding rows whenever it pads.",
    ),
)
DSMIL = WeightLayout(
    rows=(
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
    ),
    options=chosen("hidden"),
    two_classes={
        "instance_head.weight": prepend_small_logit,
        "instance_head.bias": prepend_small_logit,
        "head.weight": from_second_stream,
        "head.bias": prepend_zero_logit,
    },
    caveats=(
        "The authors read several outputs as one sigmoid each; here their softmax is the "
        "prediction. The logits agree.",
    ),
)
DSMIL_VALUES = replace(
    DSMIL,
    rows=(*DSMIL.rows, *layer("b_classifier.v.1", "in_dim in_dim", "value.0")),
    options=chosen("hidden", value_layer=True),
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
    options=chosen("hidden", "key_width", "n_confounders", width=None),
)
IBMIL_FIRST_STAGE = WeightLayout(
    rows=(
        *IBMIL_ATTENTION,
        Row("classifier.bias", "n_outputs", "head.bias"),
        Row("classifier.weight", "n_outputs in_dim", "head.weight", without_confounders),
    ),
    options=chosen("hidden", width=None),
    absent=("query.weight", "query.bias", "key.weight", "key.bias", "confounders"),
)


def mhim_network(name: str) -> tuple[Row, ...]:
    attention = f"{name}/online_encoder.attention.attention"
    return (
        *layer(f"{name}/patch_to_emb.0", "width in_dim", f"{name}.project.0"),
        *layer(f"{attention}.0", "hidden width", f"{name}.attention.0", bias=False),
        *layer(f"{attention}.2", "1 hidden", f"{name}.attention.2", bias=False),
        *layer(f"{name}/predictor", "n_outputs width", f"{name}.head"),
    )


MHIM = WeightLayout(
    rows=(*mhim_network("student"), *mhim_network("teacher")),
    options=chosen("width", "hidden"),
    buffers={"student_stage": 1},
)


def keras(theirs: str, shape: str, ours: str) -> Row:
    """A kernel of Keras, which is (in, out)."""
    return Row(theirs, shape, f"{ours}.weight", torch.Tensor.t)


CAMIL = WeightLayout(
    rows=(
        keras("encoder.custom_att.wq", "in_dim in_dim/2", "query"),
        keras("encoder.custom_att.wk", "in_dim in_dim/2", "key"),
        keras("encoder.wv.kernel", "in_dim in_dim", "value"),
        Row("encoder.wv.bias", "in_dim", "value.bias"),
        keras("encoder.nyst_att.to_qkv.kernel", "in_dim 3*in_dim", "context.qkv"),
        keras("encoder.nyst_att.to_out.kernel", "in_dim in_dim", "context.project.0"),
        Row("encoder.nyst_att.to_out.bias", "in_dim", "context.project.0.bias"),
        Row(
            "encoder.nyst_att.res_conv.kernel",
            "33 1 8 64",
            "context.value_conv.weight",
            # (33, 1, inputs per group, outputs) as (outputs, inputs per group, 33, 1).
            lambda kernel: kernel.permute(3, 2, 0, 1),
        ),
        keras("attcls.v", "in_dim hidden", "pool_content"),
        keras("attcls.u", "in_dim hidden", "pool_gate"),
        keras("attcls.w", "hidden 1", "pool_score"),
        keras("class_fc.kernel", "in_dim n_outputs", "head"),
        Row("class_fc.bias", "n_outputs", "head.bias"),
    ),
    options=chosen("hidden", width=None, convolution="heads"),
    two_classes=HEAD_OF_TWO,
)

LAYOUTS: dict[str, tuple[WeightLayout, ...]] = {
    "abmil": tuple(abmil_layout(*names) for names in ABMIL_PLACES),
    "clam_sb": tuple(attention_pool(*names, CLAM_SB_HEADS) for names in CLAM_PLACES),
    "clam_mb": tuple(
        attention_pool(*names, CLAM_MB_HEADS, branches="n_outputs") for names in CLAM_PLACES
    ),
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
    """Without the labels of the instance loss, and with the attention always in its fourth place.

    Without dropout it stands one place further to the front, and so does the last layer of the
    plain attention.
    """
    tensors = {}
    for key, tensor in theirs.items():
        name = re.sub(r"^attention_net\.2\.", "attention_net.3.", key)
        name = re.sub(r"^attention_net\.3\.2\.", "attention_net.3.3.", name)
        if not name.startswith("instance_loss_fn."):
            tensors[name] = tensor
    return tensors


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
    """The student is called 'model' by the authors, or is alone and then its own teacher."""
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
