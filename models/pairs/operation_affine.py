"""Operations that are affine in their inputs against one linear map with their matrix.

LRP with ε → 0 passes relevance through an affine map as its gradient does: in proportion to x_i w_ij (Eq. 1 of arXiv
2510.18810), whatever operation computes it, and added constants keep their share. So an operation that adds, moves or
multiplies by constants has the map x ⊙ Mᵀw of its matrix M. The matrix is the operation's value at the unit vectors.
"""

import torch
from torch import Tensor
from torch.nn import functional

from faithcheck.models.expectation import ALL_LRP, INVARIANT_BY_DEFINITION, Expectations, expect, expect_lrp
from faithcheck.models.networks.operation_by_operation import Operation, Written, operation_pair

AFFINE: Expectations = {
    **INVARIANT_BY_DEFINITION,
    **expect_lrp("an affine map has the map of its matrix: x ⊙ Mᵀw, in shares of Eq. 1", of=ALL_LRP),
    **expect("invariance", "blockwise_lrp deeplift_rescale", "an affine map has the map of its matrix"),
}


def constant(like: Tensor, *shape: int) -> Tensor:
    """Different multiples of ⅛ that are not 0, ``shape``, for weights and added constants."""
    count = torch.Size(shape).numel()
    values = (torch.arange(count, dtype=torch.float64) * 5 % 16 - 7.5) / 4
    return values.to(like.device, like.dtype).reshape(shape)


def tokens(x: Tensor) -> Tensor:
    return x.view(-1, 2, 4)


def some(x: Tensor) -> Tensor:
    """A mask of every third feature, ``(8,)`` bool."""
    return torch.arange(8, device=x.device) % 3 == 0


def index(x: Tensor, count: int = 4) -> Tensor:
    """Indices that repeat and leave out features, ``(count,)``."""
    return torch.arange(count, device=x.device) * 3 % 7


def tiny(x: Tensor) -> Tensor:
    """The features divided by 2⁴⁰: the gradient of a cast is rounded, and must not outweigh the other operations."""
    return x * 2.0**-40


def affine(**operations: Operation) -> dict[str, Written]:
    """Operations whose reference is the map with their matrix."""
    return {name: Written(operation) for name, operation in operations.items()}


# --- sums and linear maps ---------------------------------------------------------------------------------------------

operation_pair(
    "linear",
    {
        "linear": Written(
            lambda x: functional.linear(x, constant(x, 3, 8), constant(x, 3)),
            lambda x: (x.unsqueeze(1) * constant(x, 3, 8)).sum(2) + constant(x, 3),
        ),
        **affine(
            addmm=lambda x: torch.addmm(constant(x, 3), x, constant(x, 8, 3)),
            baddbmm=lambda x: torch.baddbmm(constant(x, 1, 1, 3), tokens(x), constant(x, 1, 4, 3).expand(len(x), 4, 3)),
            conv1d=lambda x: functional.conv1d(tokens(x), constant(x, 3, 2, 2), constant(x, 3)),
            conv2d=lambda x: functional.conv2d(tokens(x).unsqueeze(1), constant(x, 2, 1, 2, 2), constant(x, 2)),
            conv3d=lambda x: functional.conv3d(x.view(-1, 1, 2, 2, 2), constant(x, 2, 1, 1, 2, 2), constant(x, 2)),
            fft_fft=lambda x: torch.view_as_real(torch.fft.fft(x)),
            fft_fftn=lambda x: torch.view_as_real(torch.fft.fftn(tokens(x), dim=(1, 2))),
            batch_norm=lambda x: functional.batch_norm(
                x, constant(x, 8), constant(x, 8).abs(), constant(x, 8), constant(x, 8), training=False
            ),
        ),
    },
    "an affine map of its operand, with constant weights and a bias",
    AFFINE,
)

operation_pair(
    "sums",
    affine(
        add=lambda x: x[:, :4] + x[:, 4:],
        sub=lambda x: x[:, :4] - x[:, 4:],
        rsub=lambda x: torch.rsub(x[:, :4], x[:, 4:]),
        sum=lambda x: tokens(x).sum(1),
        mean=lambda x: tokens(x).mean(2),
        cumsum=lambda x: x.cumsum(1),
        avg_pool1d=lambda x: functional.avg_pool1d(tokens(x), 2),
        avg_pool2d=lambda x: functional.avg_pool2d(tokens(x).unsqueeze(1), 2),
        adaptive_avg_pool1d=lambda x: functional.adaptive_avg_pool1d(tokens(x), 2),
        adaptive_avg_pool2d=lambda x: functional.adaptive_avg_pool2d(tokens(x).unsqueeze(1), (1, 2)),
        dropout=lambda x: functional.dropout(x, 0.5, training=False),
        interpolate=lambda x: functional.interpolate(tokens(x), size=7, mode="linear"),
        fold=lambda x: functional.fold(tokens(x), (1, 5), (1, 2)),
        index_add=lambda x: x.index_add(1, index(x), x[:, 4:] * constant(x, 4)),
    ),
    "sums of features, by the 0, ±1 and parts of their matrix",
    AFFINE,
)

operation_pair(
    "constant_factors",
    affine(
        matmul=lambda x: torch.matmul(x, constant(x, 8, 3)),
        mm=lambda x: torch.mm(x, constant(x, 8, 3)),
        bmm=lambda x: torch.bmm(tokens(x), constant(x, 1, 4, 3).expand(len(x), 4, 3)),
        mv=lambda x: torch.mv(x, constant(x, 8)).unsqueeze(1),
        dot=lambda x: torch.stack([torch.dot(row, constant(x, 8)) for row in x.unbind(0)]).unsqueeze(1),
        inner=lambda x: torch.inner(x, constant(x, 3, 8)),
        outer=lambda x: torch.stack([torch.outer(row, constant(x, 3)) for row in x.unbind(0)]),
        einsum=lambda x: torch.einsum("bi,io->bo", x, constant(x, 8, 3)),
        mul=lambda x: x * constant(x, 8),
        div=lambda x: x / constant(x, 8),
    ),
    "a product with constants is a linear map",
    AFFINE,
)


# --- operations that write to their operand ---------------------------------------------------------------------------


def written_to(write: Operation) -> Operation:
    """The operation on a copy of its operand, which it overwrites."""

    def on_a_copy(x: Tensor) -> Tensor:
        copy = x.clone()
        write(copy)
        return copy

    return on_a_copy


def shift_features(x: Tensor) -> Tensor:
    """Overwrite three features by others; torch computes ``x += y`` by ``add_``."""
    x[:, 1:4] = x[:, 5:8].clone()
    return x


def copied_into_parts(x: Tensor) -> Tensor:
    """A new tensor whose parts are written one by one, some of them twice; its transpose is read."""
    whole = x.new_zeros(len(x), 2, 4)
    whole[:, :, :3].copy_(tokens(x)[:, :, 1:])
    whole[..., 2:].copy_(tokens(x)[..., :2])
    return whole.mT * constant(x, 4, 2)


operation_pair(
    "in_place",
    affine(
        add_=written_to(lambda x: x.add_(constant(x, 8))),
        sub_=written_to(lambda x: x.sub_(constant(x, 8))),
        mul_=written_to(lambda x: x.mul_(constant(x, 8))),
        div_=written_to(lambda x: x.div_(constant(x, 8))),
        setitem=written_to(shift_features),
        masked_fill_=written_to(lambda x: x.masked_fill_(some(x), 0.5)),
        index_add_=written_to(lambda x: x.index_add_(1, index(x), x[:, 4:] * constant(x, 4))),
        copy_=copied_into_parts,
        scatter_=written_to(lambda x: x.scatter_(1, index(x).expand(len(x), 4), 0.5)),
    ),
    "written to a copy, an affine map as any other",
    AFFINE,
)


# --- operations that move values --------------------------------------------------------------------------------------


def turned(x: Tensor) -> Tensor:
    factor = torch.complex(constant(x, 1).new_full((), 2), constant(x, 1).new_ones(()))
    return torch.view_as_real(torch.view_as_complex(x.view(-1, 4, 2)) * factor)


operation_pair(
    "shapes",
    affine(
        T=lambda x: x.T.transpose(0, 1),
        H=lambda x: x.H.transpose(0, 1),
        t=lambda x: x.t().transpose(0, 1),
        adjoint=lambda x: tokens(x).adjoint(),
        mT=lambda x: tokens(x).mT,
        mH=lambda x: tokens(x).mH,
        view=lambda x: x.view(-1, 2, 4),
        view_as=lambda x: x.view_as(constant(x, len(x), 2, 4)),
        reshape=lambda x: tokens(x).transpose(1, 2).reshape(len(x), 2, 4),
        reshape_as=lambda x: tokens(x).transpose(1, 2).reshape_as(constant(x, len(x), 2, 4)),
        transpose=lambda x: tokens(x).transpose(1, 2),
        permute=lambda x: tokens(x).permute(0, 2, 1),
        movedim=lambda x: tokens(x).movedim(1, 2),
        flatten=lambda x: tokens(x).transpose(1, 2).flatten(1),
        unflatten=lambda x: x.unflatten(1, (2, 4)),  # type: ignore[no-untyped-call]
        ravel=lambda x: tokens(x).ravel().view(len(x), 8),
        squeeze=lambda x: x.view(-1, 1, 8).squeeze(1),
        unsqueeze=lambda x: x.unsqueeze(1),
        contiguous=lambda x: tokens(x).transpose(1, 2).contiguous(),
        clone=lambda x: x.clone(),
        to=lambda x: tiny(x).to(torch.float32).to(x.dtype),
        type=lambda x: tiny(x).type(torch.float32).to(x.dtype),
        type_as=lambda x: tiny(x).type_as(constant(x, 1).float()).to(x.dtype),
        float=lambda x: tiny(x).float().to(x.dtype),
        double=lambda x: x.double().to(x.dtype),
        view_as_complex=turned,
        view_as_real=turned,
        real=lambda x: torch.view_as_complex(x.view(-1, 4, 2)).real,
        imag=lambda x: torch.view_as_complex(x.view(-1, 4, 2)).imag,
    ),
    "each value is one input value: a matrix of 0 and 1",
    AFFINE,
)

operation_pair(
    "selections",
    affine(
        getitem=lambda x: x[:, 1:4],
        select=lambda x: x.select(1, 2).unsqueeze(1),
        narrow=lambda x: x.narrow(1, 2, 3),
        index_select=lambda x: x.index_select(1, index(x)),
        gather=lambda x: x.gather(1, index(x).expand(len(x), 4)),
        take_along_dim=lambda x: x.take_along_dim(index(x).expand(len(x), 4), 1),
        split=lambda x: torch.cat(x.split([1, 2, 5], 1)[::-1], 1),  # type: ignore[no-untyped-call]
        chunk=lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
        unbind=lambda x: torch.stack(x.unbind(1)[::-1], 1),
        tensor_split=lambda x: torch.cat(x.tensor_split(3, 1)[::-1], 1),
        diagonal=lambda x: tokens(x).diagonal(0, 1, 2),
        tril=lambda x: tokens(x).tril(),
        triu=lambda x: tokens(x).triu(),
        roll=lambda x: x.roll(3, 1),
        flip=lambda x: x.flip(1),
        neg=lambda x: -x,
        positive=lambda x: +x,
    ),
    "each value is ± one input value or 0: a matrix of 0, 1 and −1",
    AFFINE,
)

operation_pair(
    "copies",
    affine(
        expand=lambda x: x.unsqueeze(1).expand(-1, 2, -1),
        expand_as=lambda x: x.unsqueeze(1).expand_as(constant(x, len(x), 2, 8)),
        broadcast_to=lambda x: x.unsqueeze(1).broadcast_to((len(x), 2, 8)),
        repeat=lambda x: x.repeat(1, 2),
        tile=lambda x: x.tile((1, 2)),
        repeat_interleave=lambda x: x.repeat_interleave(2, 1),
        cat=lambda x: torch.cat([x, x[:, :2]], 1),
        unfold=lambda x: x.unfold(1, 3, 2),
        as_strided=lambda x: x.clone().as_strided((len(x), 3), (8, 2), 1),
        stack=lambda x: torch.stack([x, x], 1),
        hstack=lambda x: torch.hstack([x, x[:, :2]]),
        vstack=lambda x: torch.vstack([x[:1], x[1:]]),
    ),
    "each value is one input value: a matrix of 0 and 1",
    AFFINE,
)

operation_pair(
    "filled",
    affine(
        pad=lambda x: functional.pad(x, (1, 2), value=0.5),
        masked_fill=lambda x: x.masked_fill(some(x), 0.5),
        where=lambda x: torch.where(some(x), 0.5, x),
        scatter=lambda x: x.scatter(1, index(x).expand(len(x), 4), 0.5),
    ),
    "each value is one input value or a constant",
    AFFINE,
)
