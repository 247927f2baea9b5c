"""Cross-covariance attention (section 3.2 of the paper), in two exact forms.

With queries, keys and values ``Q, K, V`` (one row a token), L2-normalised over the tokens:

    XCA(Q, K, V) = V · A(K, Q),    A = softmax(K̂ᵀ Q̂ / τ)

*Token form*: compute queries, keys and values for every token, as the paper writes it.

*Covariance form*: all that the attention map sees of the tokens X are their second-order
statistics. With a column of ones for the biases, ``X̄ = [X, 1]`` and ``S = X̄ᵀ X̄``,

    Qᵀ K = W̄q S W̄kᵀ,   |q_i|² = (W̄q S W̄qᵀ)_ii,   |k_j|² = (W̄k S W̄kᵀ)_jj,

and the output is one linear map of the tokens. That is two products of N·d² instead of 4 + 2/h, and
no queries, keys or values are ever stored. It stands here as three functions, :func:`statistics`,
:func:`attention_from_statistics` and :func:`apply_attention`; ``S`` adds up over tiles of an image
and over machines.

Any token may serve as the origin: with ``X - r`` for ``X`` and ``W r + b`` for ``b`` the result is
the same, and so is every gradient with r held fixed. :class:`XCA` takes the first token, so that
tokens which hardly differ leave small sums, not differences of large ones.
"""

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional as F

from .chunks import add_product, chunks
from .precision import at_least_float32, autocast_dtype, without_autocast

FORMS = ('auto', 'token', 'covariance')

# The norm below which a channel counts as zero; squared where squares are compared.
EPS = 1e-12


def statistics(tokens: Tensor) -> Tensor:
    """``S = X̄ᵀ X̄`` of tokens X (B, N, d) with a column of ones appended: (B, d + 1, d + 1).

    In float32 at least: the sum over N tokens leaves float16's range.
    """
    with without_autocast(tokens):
        tokens = at_least_float32(tokens)
        if torch.is_grad_enabled() and tokens.requires_grad and not torch.compiler.is_compiling():
            second_moment = _SecondMoment.apply(tokens)
        else:
            second_moment = tokens.mT @ tokens
        return _assemble(second_moment, tokens.sum(1), tokens.shape[1])


def _assemble(second_moment: Tensor, first_moment: Tensor, count: int) -> Tensor:
    """``S`` from ``XᵀX`` (B, d, d), the sum of the tokens (B, d) and their number."""
    column = first_moment[..., None]
    corner = column.new_full((len(column), 1, 1), count)
    upper = torch.cat([second_moment, column], dim=2)
    return torch.cat([upper, torch.cat([column.mT, corner], dim=2)], dim=1)


class _SecondMoment(torch.autograd.Function):
    """``XᵀX``, whose backward is one product with the symmetric part, not two."""

    @staticmethod
    def forward(ctx: FunctionCtx, tokens: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        return tokens.mT @ tokens

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> Tensor:
        (tokens,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return tokens @ (grad + grad.mT)


def attention_from_statistics(
    S: Tensor, qkv_weight: Tensor, qkv_bias: Tensor | None, temperature: Tensor
) -> Tensor:
    """The attention map A (B, h, d/h, d/h) from the statistics of the tokens.

    Args:
        S (Tensor): What :func:`statistics` returned, (B, d + 1, d + 1).
        qkv_weight (Tensor): Weights of queries, keys and values, (3 d, d).
        qkv_bias (Tensor, optional): Their biases, (3 d), or one set a sample, (B, 3 d).
        temperature (Tensor): 1/τ, one a head, (h, 1, 1).
    """
    with without_autocast(S):
        dims, num_heads = qkv_weight.shape[1], temperature.shape[0]
        to_qk = _with_bias(qkv_weight.to(S.dtype), qkv_bias)[:, : 2 * dims]
        to_qk_S = to_qk @ S
        squares = (to_qk_S * to_qk).sum(-1)
        query_squares, key_squares = squares.unflatten(1, (2, num_heads, -1)).unbind(1)
        queries_S = to_qk_S[:, :dims].unflatten(1, (num_heads, -1))
        to_keys = to_qk[:, dims:].unflatten(1, (num_heads, -1))
        products = queries_S @ to_keys.mT
        return _attention(products, query_squares, key_squares, temperature)


def query_key_norms(S: Tensor, qkv_weight: Tensor, qkv_bias: Tensor | None) -> Tensor:
    """``|q_i|`` and ``|k_j|`` over the tokens, (B, 2 d), from their statistics.

    Args:
        S (Tensor): What :func:`statistics` returned, (B, d + 1, d + 1).
        qkv_weight (Tensor): Weights of queries, keys and values, (3 d, d).
        qkv_bias (Tensor, optional): Their biases, (3 d), or one set a sample, (B, 3 d).
    """
    to_qk = _with_bias(qkv_weight.to(S.dtype), qkv_bias)[:, : 2 * qkv_weight.shape[1]]
    return (to_qk @ S * to_qk).sum(-1).clamp_min(EPS**2).sqrt()


def _attention(
    products: Tensor, query_squares: Tensor, key_squares: Tensor, temperature: Tensor
) -> Tensor:
    """Softmax of the cosines between queries and keys, times the temperature."""
    query_scale = query_squares.clamp_min(EPS**2).rsqrt()
    key_scale = key_squares.clamp_min(EPS**2).rsqrt()
    cosines = products * query_scale[..., :, None] * key_scale[..., None, :]
    return (cosines * temperature.to(products.dtype)).softmax(-1)


def apply_attention(
    tokens: Tensor,
    attention: Tensor,
    qkv_weight: Tensor,
    qkv_bias: Tensor | None,
    proj_weight: Tensor,
    proj_bias: Tensor,
) -> Tensor:
    """Values, attention and projection as one linear map of the tokens.

    Args:
        tokens (Tensor): (B, N, d).
        attention (Tensor): The map A, (B, h, d/h, d/h).
        qkv_weight (Tensor): Weights of queries, keys and values, (3 d, d).
        qkv_bias (Tensor, optional): Their biases, (3 d), or one set a sample, (B, 3 d).
        proj_weight (Tensor): Weight of the output projection, (d, d).
        proj_bias (Tensor): Its bias, (d).
    """
    weight, bias = linear_map(attention, qkv_weight, qkv_bias, proj_weight, proj_bias)
    return torch.baddbmm(bias[:, None].to(tokens.dtype), tokens, weight.mT.to(tokens.dtype))


def linear_map(
    attention: Tensor,
    qkv_weight: Tensor,
    qkv_bias: Tensor | None,
    proj_weight: Tensor,
    proj_bias: Tensor,
) -> tuple[Tensor, Tensor]:
    """Weight (B, d, d) and bias (B, d) of the map of :func:`apply_attention`."""
    with without_autocast(attention):
        dtype = attention.dtype
        to_values = _with_bias(qkv_weight.to(dtype), qkv_bias).chunk(3, dim=1)[2]
        mixed = attend_then_project(attention, proj_weight.to(dtype))
        weight = mixed @ to_values
        return weight[..., :-1], weight[..., -1] + proj_bias.to(dtype)


def attend_then_project(attention: Tensor, proj_weight: Tensor) -> Tensor:
    """``Wp · blockdiag(A)``: (B, d, d)."""
    per_head = proj_weight.unflatten(1, (attention.shape[1], -1)).transpose(0, 1)
    return (per_head @ attention).transpose(1, 2).flatten(2)


def _with_bias(weight: Tensor, bias: Tensor | None) -> Tensor:
    """Append the bias, or zeros, to a weight as its last column: (1 or B, rows, d + 1)."""
    if bias is None:
        bias = weight.new_zeros(weight.shape[0])
    bias = bias.to(weight.dtype).view(-1, weight.shape[0], 1)
    return torch.cat([weight.expand(len(bias), -1, -1), bias], dim=2)


class XCA(BaseModule):
    """Cross-covariance attention, both forms on one set of weights.

    Args:
        embed_dims (int): Width d of the tokens.
        num_heads (int): Number of heads h.
        qkv_bias (bool): Whether queries, keys and values have biases.
        attention (str): ``token``, ``covariance``, or ``auto``, which takes the cheaper one.
    """

    def __init__(
        self, embed_dims: int, num_heads: int, qkv_bias: bool = True, attention: str = 'auto'
    ) -> None:
        super().__init__()
        if attention not in FORMS:
            raise ValueError(f'attention must be one of {", ".join(FORMS)}, not {attention!r}')
        self.embed_dims = embed_dims
        self.num_heads = num_heads
        self.attention = attention
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims, bias=qkv_bias)
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.proj = nn.Linear(embed_dims, embed_dims)

    def form(self, num_tokens: int) -> str:
        """The form that is used for this many tokens."""
        if self.attention != 'auto':
            return self.attention
        return 'covariance' if self._covariance_is_cheaper(num_tokens) else 'token'

    def _covariance_is_cheaper(self, num_tokens: int) -> bool:
        # In units of d² products: N (4 + 2/h) against 2 N and what depends on d alone. The
        # constants of the latter were measured; backward makes many small products.
        per_token_saving = 2 + 2 / self.num_heads
        fixed_cost = 6.0 if torch.is_grad_enabled() else 2.5
        return per_token_saving * num_tokens > fixed_cost * self.embed_dims

    def forward(self, tokens: Tensor, gamma: Tensor | None = None) -> Tensor:
        """Attend over the channels of tokens (B, N, d).

        Args:
            tokens (Tensor): The tokens, normalised by the layer.
            gamma (Tensor, optional): LayerScale (d), folded into the projection.
        """
        weight: Tensor = self.proj.weight
        bias: Tensor = self.proj.bias
        if gamma is not None:
            weight, bias = gamma[:, None] * weight, gamma * bias
        if self.form(tokens.shape[1]) == 'covariance':
            tokens, qkv_bias = self._from_first_token(tokens)
            attention = attention_from_statistics(
                statistics(tokens), self.qkv.weight, qkv_bias, self.temperature
            )
            return apply_attention(tokens, attention, self.qkv.weight, qkv_bias, weight, bias)
        queries, keys, values = self.qkv(tokens).chunk(3, dim=-1)
        attention = self._token_attention(queries, keys)
        mixed = attend_then_project(attention, weight.to(attention.dtype))
        bias = bias.to(values.dtype)
        return torch.baddbmm(bias.expand(1, 1, -1), values, mixed.mT.to(values.dtype))

    def _from_first_token(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens with the first one as their origin, and the biases that go with them."""
        origin = tokens[:, :1].detach()
        with without_autocast(tokens):
            dtype = self.qkv.weight.dtype
            return tokens - origin, F.linear(origin[:, 0].to(dtype), self.qkv.weight, self.qkv.bias)

    def add_to(self, x: Tensor, norm: nn.LayerNorm, gamma: Tensor) -> None:
        """``x += γ · XCA(LN(x))`` in place, for inference.

        In covariance form the normalised tokens are computed twice, chunk by chunk, and never
        stored.

        Args:
            x (Tensor): Tokens (B, N, d).
            norm (nn.LayerNorm): The LayerNorm in front.
            gamma (Tensor): LayerScale (d).
        """
        if self.form(x.shape[1]) == 'token':
            x.add_(self(norm(x), gamma))
            return
        dtype = autocast_dtype(x) or x.dtype
        with without_autocast(x):
            S, qkv_bias = self.chunked_statistics(x, norm)
            attention = attention_from_statistics(S, self.qkv.weight, qkv_bias, self.temperature)
            weights, biases = linear_map(
                attention,
                self.qkv.weight,
                self.qkv.bias,
                gamma[:, None] * self.proj.weight,
                gamma * self.proj.bias,
            )
            for sample, weight, bias in zip(x, weights, biases, strict=True):
                weight = weight.t().to(dtype)
                for chunk in chunks(sample, x.shape[2]):
                    add_product(sample[chunk], norm(sample[chunk]).to(dtype), weight)
                    sample[chunk] += bias

    def chunked_statistics(self, x: Tensor, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
        """``S`` of LN(x) with the first token as origin, and the biases that go with it.

        For inference. The normalised tokens are never stored.

        Args:
            x (Tensor): Tokens (B, N, d).
            norm (nn.LayerNorm): The LayerNorm in front.

        Returns:
            tuple[Tensor, Tensor]: (B, d + 1, d + 1) and (B, 3 d).
        """
        dtype = torch.promote_types(x.dtype, torch.float32)
        second_moment = x.new_zeros(len(x), x.shape[2], x.shape[2], dtype=dtype)
        first_moment = x.new_zeros(len(x), x.shape[2], dtype=dtype)
        origin = norm(x[:, 0])
        for i, sample in enumerate(x):
            for chunk in chunks(sample, x.shape[2]):
                normed = norm(sample[chunk]).sub_(origin[i]).to(dtype)
                second_moment[i].addmm_(normed.t(), normed)
                first_moment[i] += normed.sum(0)
        S = _assemble(second_moment, first_moment, x.shape[1])
        return S, self.qkv(origin.to(self.qkv.weight.dtype))

    def attention_map(self, tokens: Tensor) -> Tensor:
        """The attention map A (B, h, d/h, d/h), by the form that is in use."""
        if self.form(tokens.shape[1]) == 'covariance':
            tokens, qkv_bias = self._from_first_token(tokens)
            return attention_from_statistics(
                statistics(tokens), self.qkv.weight, qkv_bias, self.temperature
            )
        queries, keys, _ = self.qkv(tokens).chunk(3, dim=-1)
        return self._token_attention(queries, keys)

    def _token_attention(self, queries: Tensor, keys: Tensor) -> Tensor:
        with without_autocast(queries):
            # (B, N, d) -> (B, h, N, d/h)
            queries, keys = (
                at_least_float32(tokens).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
                for tokens in (queries, keys)
            )
            products = queries.mT @ keys
            query_squares = queries.square().sum(2)
            key_squares = keys.square().sum(2)
            return _attention(products, query_squares, key_squares, self.temperature)

    def init_weights(self) -> None:
        super().init_weights()
        nn.init.ones_(self.temperature)
