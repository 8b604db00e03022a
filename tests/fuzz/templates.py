"""What statements there are: templates of torch code, in groups of a weight.

In a template, `{x}` is a tensor, `{f}` one of floats, `{i}` of integers, `{b}` of bools, `{g}` one that needs a
gradient; `{y}`, `{fy}`, `{iy}` are such ones that broadcast with the first; `{same}` has the first one's sizes and
dtype; `{d}` and `{e}` are dims of the first, `{s}` is a number, `{m}` a small one, `{q}` a bool, `{seed}` a seed,
`{dt}` a dtype, `{shape}` a shape, `{new}` a new variable. `a|b` inside braces chooses: `{exp|log}`. An expression is
given to a variable, if it does not do that itself. What torch refuses on the CPU is drawn again.
"""

from __future__ import annotations


def words(text: str) -> str:
    """`a b c` as a choice."""
    return "{" + "|".join(text.split()) + "}"


UNARY = words(
    "neg abs sign sgn floor ceil round trunc frac exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos "
    "tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc lgamma sigmoid logit relu isnan isinf isfinite "
    "isposinf isneginf signbit logical_not bitwise_not square nan_to_num erfinv digamma i0 deg2rad"
)
ACTIVATION = words(
    "silu mish gelu hardswish hardsigmoid elu leaky_relu hardtanh relu6 softplus softshrink hardshrink celu selu "
    "logsigmoid tanhshrink softsign relu"
)
BINARY = words(
    "add sub rsub mul maximum minimum fmax fmin eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and "
    "bitwise_or bitwise_xor heaviside where_ gcd"
).replace("|where_", "")
FLOAT_BINARY = words(
    "div floor_divide remainder fmod pow atan2 copysign hypot xlogy logaddexp logaddexp2 nextafter float_power mul "
    "sub add"
)
REDUCE = words("sum mean prod amax amin any all argmax argmin std var nansum nanmean count_nonzero median logsumexp")
DIM_REDUCE = words("sum mean amax amin sum mean prod any all argmax argmin std var nansum nanmean logsumexp")
LOSS = words(
    "mse_loss smooth_l1_loss huber_loss l1_loss binary_cross_entropy_with_logits kl_div soft_margin_loss "
    "hinge_embedding_loss poisson_nll_loss multilabel_soft_margin_loss"
)

#: group -> (weight, templates): expressions.
EXPRESSIONS: dict[str, tuple[float, list[str]]] = {
    "input": (5, ["fill({seed}, {shape}, {dt}{wild}).to(dev)", "fill({seed}, {x}.shape, {dt}{wild}).to(dev)"]),
    "unary": (10, [f"torch.{UNARY}({{x}})", f"torch.{UNARY}({{f}})", f"F.{ACTIVATION}({{f}})"]),
    "binary": (
        14,
        [
            f"torch.{BINARY}({{x}}, {{y}})",
            f"torch.{FLOAT_BINARY}({{f}}, {{fy}})",
            "{x} {+|-|*|<|>=|==|!=} {y}",
            "{f} / {fy}",
            "torch.{add|sub}({x}, {y}, alpha={m})",
            "torch.div({f}, {fy}, rounding_mode='{floor|trunc}')",
            "{i} {//|%} ({iy} | 1)",
            "{i} {<<|>>} {m}",
            "{i} {&|^} {iy}",
        ],
    ),
    "number": (
        10,
        [
            "{x} {+|-|*|<|>=|==} {s}",
            "{s} {+|-|*|<|>=} {x}",
            "{f} {/|//|%} {s}",
            "{s} / {f}",
            "{f} ** {2|3|0.5|-1|-2|k}",
            "torch.{add|sub|rsub}({x}, {s}, alpha={m})",
            "{i} {//|%} {2|3|7|-3|(k + 1)}",
            "{x} {+|*} torch.tensor({s})",
        ],
    ),
    "ternary": (
        7,
        [
            "torch.where({b}, {y}, {y})",
            "torch.where({f} {<|>=} {s}, {fy}, {s})",
            "torch.clamp({x}, {-1|0|-k}, {m})",
            "torch.clamp({f}, max={fy})",
            "torch.lerp({f}, {same}, {0.3|k / 7|0.75})",
            "torch.lerp({f}, {same}, {same})",
            "torch.{addcmul|addcdiv}({f}, {same}, {same}, value={s})",
            "{x}.masked_fill({x} {<|>} 0, {m})",
            "F.threshold({f}, 0.1, {s})",
        ],
    ),
    "reduce": (
        12,
        [
            f"{{x}}.{DIM_REDUCE}({{d}}, keepdim={{q}})",
            f"{{f}}.{DIM_REDUCE}({{d}}, keepdim={{q}})",
            f"{{x}}.{REDUCE}()",
            "{f}.{sum|mean|amax|var|std}(({d}, {e}), keepdim={q})",
            "{f}.{norm|sum|mean}()",
            "torch.linalg.vector_norm({f}, {1|2|3|float('inf')|0}, {d})",
            "{x}.sum({d}, dtype={dt})",
            "{x}.{max|min}({d})[0]",
            "{x}.{max|min}({d}, keepdim={q})[{0|1}]",
            "torch.aminmax({x}, dim={d}, keepdim={q})[{0|1}]",
            "torch.{var_mean|std_mean}({f}, {d}, correction={0|1|k})[{0|1}]",
            "torch.count_nonzero({x}, {d})",
            "torch.{var|std}({f}, {d}, correction={0|1})",
            "torch.softmax({f}, {d}).sum({e})",
        ],
    ),
    "row": (
        14,
        [
            "torch.{softmax|log_softmax}({f}, {d})",
            "torch.{softmax|log_softmax}({f}, {d}, dtype=torch.float32)",
            "F.softmin({f}, {d})",
            "F.layer_norm({f}, {f}.shape[-1:])",
            "F.layer_norm({f}, {f}.shape[-1:], {weight}, {weight})",
            "F.layer_norm({f}, {f}.shape[-2:], eps=1e-3)",
            "F.rms_norm({f}, {f}.shape[-1:])",
            "F.rms_norm({f}, {f}.shape[-1:], {weight}, eps=1e-5)",
            "F.group_norm({f}, {1|2|4})",
            "F.group_norm({f}, {1|2}, {channels}, {channels})",
            "F.instance_norm({f})",
            "F.batch_norm({f}, None, None, training=True)",
            "F.batch_norm({f}, None, None, {channels}, {channels}, training=True, momentum=0.2)",
            "F.batch_norm({f}, {channels}, {channels}.abs() + 1, training=False)",
            "F.normalize({f}, dim={d})",
            "{f} / {f}.norm(dim={d}, keepdim=True)",
        ],
    ),
    "loss": (
        6,
        [
            "F.cross_entropy({f}, {classes}{loss})",
            "F.nll_loss(torch.log_softmax({f}, 1), {classes}{loss})",
            "F.cross_entropy({f}, torch.softmax({same}, 1))",
            "F.cross_entropy({f}, {classes}, weight={channels}.abs(), label_smoothing=0.1)",
            f"F.{LOSS}({{f}}, {{same}}{{loss}})",
            "F.binary_cross_entropy(torch.sigmoid({f}), ({same} > 0).to({f}.dtype){loss})",
            "F.{smooth_l1_loss|mse_loss|huber_loss}({f}.transpose(0, -1), {same}.transpose(0, -1))",
            "F.smooth_l1_loss({f}, {same}, beta={0.3|1.5}{loss})",
            "F.{logsigmoid|celu|selu|softsign}({f})",
            "F.prelu({f}, {channels})",
        ],
    ),
    "matmul": (
        5,
        [
            "{f} @ {same}.transpose(-2, -1)",
            "{f}.transpose(-2, -1) @ {same}",
            "F.linear({f}, {matrix})",
            "F.linear({f}, {matrix}, {weight}.sum() * 0)",
            "torch.matmul({f}, fill({seed}, ({f}.size(-1), {3|8}), {f}.dtype).to(dev))",
            "torch.einsum('...i,...i->...', {f}, {same})",
            "torch.bmm({f}, {same}.transpose(1, 2))",
            "F.scaled_dot_product_attention({f}, {same}, {same})",
            "torch.addmm({f}, {f}, fill({seed}, ({f}.size(1), {f}.size(1)), {f}.dtype).to(dev))",
        ],
    ),
    "conv": (
        2,
        [
            "F.conv1d({f}, fill({seed}, ({2|4}, {f}.size(1), {1|3}), {f}.dtype).to(dev), padding=1)",
            "F.conv2d({f}, fill({seed}, ({2|4}, {f}.size(1), 3, 3), {f}.dtype).to(dev), padding=1)",
            "F.{max_pool2d|avg_pool2d}({f}, 2)",
            "F.adaptive_avg_pool2d({f}, 2)",
            "F.interpolate({f}, scale_factor=2)",
            "F.glu({f}, {d})",
        ],
    ),
    "movement": (
        10,
        [
            "torch.cat([{x}, {same}], {d})",
            "torch.cat([{x}, {x}, {y}], {d})",
            "torch.stack([{x}, {same}], {d})",
            "torch.stack([{x}[..., 0], {x}[..., -1]], -1)",
            "F.pad({x}, ({1|0|-1}, {2|0}))",
            "F.pad({x}, (0, 1, {1|2}, 0), value={s})",
            "F.pad({f}, (1, 1), mode='{reflect|replicate}')",
            "{x}.index_select({d}, index({seed}, ({m},), {x}.size({d})).to(dev))",
            "{x}[index({seed}, ({m}, 2), {x}.size(0)).to(dev)]",
            "{x}[:, index({seed}, ({m},), {x}.size(1)).to(dev)]",
            "torch.gather({x}, {d}, index({seed}, {x}.shape, {x}.size({d})).to(dev))",
            "torch.scatter({x}, {d}, index({seed}, {x}.shape, {x}.size({d})).to(dev), {s})",
            "torch.scatter_add({f}, {d}, index({seed}, {f}.shape, {f}.size({d})).to(dev), {same})",
            "torch.index_add({f}, {d}, index({seed}, ({f}.size({d}),), {f}.size({d})).to(dev), {same})",
            "F.embedding(index({seed}, (2, {m}), {f}.size(0)).to(dev), {f})",
            "F.embedding(index({seed}, (2, {m}), {f}.size(0)).to(dev), {f}.flatten(1)) * {s}",
            "{x}[-1 - index({seed}, ({m}, 2), {x}.size(0)).to(dev)]",
            "{x}[{i}.long() % {x}.size(0)] {+|*} {s}",
            "{x}[..., index({seed}, ({m},), {x}.size(-1)).to(dev)]",
            "{x}[index({seed}, ({m}, 1), {x}.size(0)).to(dev), index({seed}, (2,), {x}.size(1)).to(dev)]",
            "{x}[index({seed}, ({m},), {x}.size(0)).to(dev), ..., index({seed}, ({m},), {x}.size(-1)).to(dev)]",
            "{x}.take(index({seed}, ({m}, 3), {x}.numel()).to(dev))",
            "torch.take_along_dim({x}, {x}.{argmax|argmin}({d}, keepdim=True), {d})",
            "torch.take_along_dim({f}, index({seed}, {f}.shape, {f}.size({d})).int().to(dev).long(), {d}) {+|*} {fy}",
            "F.one_hot(index({seed}, ({m}, 2), 5).to(dev), {5|-1|9}){|.float()}",
            "{f}.index_put((index({seed}, (4,), {f}.size(0)).to(dev),), {f}[:1], accumulate=True)",
            "torch.index_add({f}, {d}, index({seed}, ({f}.size({d}),), {f}.size({d})).to(dev), {same}) {+|*} {fy}",
            "torch.{tril|triu}({x}, {0|1|-1})",
            "{x}.flip({d})",
            "{x}.roll({m}, {d})",
            "{x}.repeat({1|2}, *[1] * ({x}.dim() - 1))",
            "{x}.repeat_interleave({m}, {d})",
            "{x}.sort({d})[0]",
            "torch.topk({f}, 1, {d})[0]",
            "torch.{cumsum|cumprod}({f}, {d})",
            "{x}[{b}]",
            "{x}.contiguous()",
            "{x}.clone()",
            "{x}.clone(memory_format=torch.contiguous_format)",
            "torch.tile({x}, ({m},))",
            "torch.{zeros|ones|empty}_like({x}).copy_({y})",
            "torch.{zeros|ones}({x}.shape, dtype={dt}, device=dev)",
            "torch.full({x}.shape, {s}, device=dev)",
            "torch.arange({x}.size({d}), device=dev)",
        ],
    ),
    "cast": (
        5,
        [
            "{x}.to({dt})",
            "{x}.{float|double|bfloat16|half|long|bool}()",
            "{x}.cpu().clone().to(dev)",
            "({x}.cpu() * 2).to(dev)",
            "{x}.to(dev, copy=True)",
            "{f}.to({dt}).to({f}.dtype)",
        ],
    ),
    "view": (
        16,
        [
            "{x}.transpose({d}, {e})",
            "{x}.t()",
            "{x}.permute(*range({x}.dim())[::-1])",
            "{x}[..., {1:|::2|:-1|1::3|-1|0|:1}]",
            "{x}[{1:|::2|:2|0|-1|:0|None}]",
            "{x}.narrow({d}, {0|1}, {1|2})",
            "{x}.select({d}, {0|-1})",
            "{x}.unsqueeze({d})",
            "{x}.squeeze()",
            "{x}.expand({m}, *{x}.shape)",
            "{x}[..., :1].expand({x}.shape)",
            "{x}.reshape(-1)",
            "{x}.view(-1)",
            "{x}.flatten({d}, -1)",
            "{x}.reshape({x}.size(0), -1)",
            "{x}.unflatten(-1, (-1, {1|2}))",
            "{x}.unfold({d}, 2, {1|2})",
            "{x}.diagonal(0, {d}, {e})",
            "{x}.view_as({x})",
            "{x}.detach()",
            "{x}.movedim({d}, {e})",
            "torch.as_strided({x}.contiguous(), ({x}.numel() // 2,), (2,))",
            "torch.as_strided({x}.contiguous(), ({m}, {x}.numel() // 3), ({0|1}, 1))",
            "{x}.view(torch.{int32|int16|float32|uint8})",
            "{new}, {new} = {x}.chunk(2, {d})",
            "{new}, *_ = {x}.split({1|2}, {d})",
            "{new}, *_ = {x}.unbind({d})",
        ],
    ),
    "random": (
        6,
        [
            "F.dropout({f}, {0.1|0.5|0.0})",
            "F.{dropout1d|dropout2d|alpha_dropout}({f}, 0.3)",
            "torch.{rand|randn}({x}.shape, device=dev)",
            "torch.{rand_like|randn_like}({f})",
            "torch.randint(0, 9, {x}.shape, device=dev)",
            "torch.bernoulli(torch.sigmoid({f}))",
            "torch.randperm({x}.size({d}), device=dev)",
            "torch.empty_like({f}).{uniform_|normal_|exponential_|log_normal_|cauchy_}()",
            "torch.rand({x}.shape, device=dev, dtype={dt})",
            "torch.multinomial(torch.softmax({f}, -1), 2, replacement=True)",
        ],
    ),
    "grad": (
        8,
        [
            "{f}.detach().clone().requires_grad_()",
            "{f}.clone().requires_grad_()",
            "{g} * {fy}",
            "torch.{tanh|exp|sigmoid|sin}({g})",
            "torch.autograd.grad({g}.sum(), {leaf}, retain_graph=True)[0]",
            "torch.autograd.grad(({g} * {g}).sum(), {leaf}, create_graph=True)[0]",
            "torch.autograd.grad({g}, {leaf}, torch.ones_like({g}), retain_graph=True, allow_unused=True)[0]",
            "{leaf}.grad",
            "{leaf}.grad * 2",
            "torch.utils.checkpoint.checkpoint(lambda v: torch.tanh(v) * v, {g}, use_reentrant=False)",
        ],
    ),
}

#: group -> (weight, templates): statements that give no variable.
STATEMENTS: dict[str, tuple[float, list[str]]] = {
    "in place": (
        14,
        [
            "{x}.{add_|sub_|mul_}({s})",
            "{x}.{add_|sub_|mul_}({y})",
            "{f}.{div_|copysign_|atan2_}({fy})",
            "{f}.add_({fy}, alpha={s})",
            "{f}.{addcmul_|addcdiv_}({same}, {same}, value={0.1|k})",
            "{f}.lerp_({same}, {0.3|k / 5})",
            "{x}.{copy_|copy_|fill_}({y})",
            "{f}.{neg_|abs_|exp_|sqrt_|floor_|sigmoid_|tanh_|relu_|sin_|zero_|reciprocal_|round_}()",
            "{x}.clamp_({-1|0}, {m})",
            "{f}.clamp_min_({s})",
            "{x}.masked_fill_({x} > {m}, {s})",
            "{x}[{0|-1|1:|::2|...}] = {s}",
            "{x}[..., {0|-1|1:|::2|:1}] {+=|*=|-=|=} {s}",
            "{x}[..., {1:|:-1}] += {x}[..., {:-1|1:}].clone()",
            "{x}[{0|-1|1:|::2}] = {y}",
            "{x}[:] = {y}",
            "{x}[{x} {>|<} 0] = {s}",
            "{x}[index({seed}, (2,), {x}.size(0)).to(dev)] = {s}",
            "{x} {+=|-=|*=} {y}",
            "{x} {+=|*=} {s}",
            "{f} /= {s}",
            "{x}.transpose({d}, {e}).{add_|mul_}({s})",
            "{f}.index_put_((index({seed}, (4,), {f}.size(0)).to(dev),), {f}[:1] * 2, accumulate=True)",
            "{f}.index_add_({d}, index({seed}, ({f}.size({d}),), {f}.size({d})).to(dev), {same})",
            "{x}.scatter_({d}, index({seed}, {x}.shape, {x}.size({d})).to(dev), {s})",
            "{x}.fill_diagonal_({s})",
            "{x}.t_()",
            "{x}.resize_({m}, {m}).fill_({s})",
            "{x}.data = {x}.data * 2",
            "{x}.data.mul_({s})",
            "F.relu({f}, inplace=True)",
            "{x}.set_({same})",
            "{x}.squeeze_()",
            "{x}.copy_({y}.cpu())",
            "{x}.{eq_|lt_|ge_|logical_and_}({y})",
        ],
    ),
    "out": (
        5,
        [
            "torch.{add|sub|mul|maximum}({x}, {y}, out={same})",
            "torch.{exp|sqrt|sin|abs|neg|sigmoid|tanh}({f}, out={same})",
            "torch.{sum|mean|amax}({f}, {d}, keepdim=True, out=torch.empty(0, dtype={f}.dtype, device=dev))",
            "torch.{sum|mean}({f}, {d}, out=torch.empty(0, dtype={f}.dtype, device=dev))",
            "torch.softmax({f}, {d}, out={same})",
            "torch.cat([{x}, {same}], 0, out=torch.empty(0, dtype={x}.dtype, device=dev))",
            "torch.mul({f}, {s}, out={same}[:])",
            "torch.{lt|ge|eq}({x}, {y}, out=torch.empty(0, dtype=torch.bool, device=dev))",
        ],
    ),
    "random in place": (
        2,
        [
            "{f}.{uniform_|normal_|exponential_}()",
            "{x}.random_(0, 7)",
            "{f}.bernoulli_(0.4)",
            "torch.manual_seed({seed})",
            "F.dropout({f}, 0.4, inplace=True)",
            "torch.nn.init.{xavier_uniform_|kaiming_normal_|trunc_normal_}({f})",
        ],
    ),
    "foreach": (
        5,
        [
            "torch._foreach_{add_|mul_|sub_}([{f}, {same}], {s})",
            "torch._foreach_{add_|mul_|div_|maximum_}([{f}, {same}], [{same}, {same}])",
            "torch._foreach_add_([{f}, {same}], [{same}, {same}], alpha={s})",
            "torch._foreach_{sqrt_|abs_|neg_|zero_|exp_|reciprocal_}([{f}, {same}])",
            "torch._foreach_{addcmul_|addcdiv_}([{f}, {same}], [{same}, {same}], [{same}, {same}], value={0.1|k})",
            "torch._foreach_lerp_([{f}, {same}], [{same}, {same}], {0.2|k / 9})",
            "torch._foreach_clamp_{min|max}_([{f}, {same}], {s})",
            "torch._foreach_copy_([{f}, {x}], [{f}, {x}])",
            "torch._foreach_mul_([{f}, {x}], {m})",
            "{new}, {new} = torch._foreach_{mul|add}([{f}, {x}], {s})",
            "{new}, {new} = torch._foreach_norm([{f}, {same}])",
            "{new}, {new} = torch._foreach_{sqrt|abs|exp}([{f}, {same}])",
            "torch._foreach_mul_([{f}, {same}], {f}.sum().tanh())",
            "torch._foreach_{add_|mul_}([{f}, {same}], [{0.5|k}, {m}])",
            "torch._foreach_addcdiv_([{f}, {same}], [{same}, {same}], [{same}, {same}], [{0.5|k}, {m}])",
            "torch._foreach_pow_([{f}, {same}], {2|3})",
        ],
    ),
    "read": (
        6,
        [
            "reads.append({x}.{sum|amax|any}().item())",
            "reads.append({x}.tolist())",
            "reads.append({x}.cpu().clone())",
            "reads.append({x}.detach().cpu().numpy().copy().tolist())",
            "reads.append(repr({x}))",
            "reads.append(bool(({x} > {s}).any()))",
            "reads.append(float({x}.sum()))",
            "reads.append(torch.equal({x}, {same}))",
            "reads.append({x}._version)",
            "reads.append(torch.allclose({f}, {same}))",
            "torch.neuron.synchronize()",
            "if {f}.sum() > {s}:\n    {f2} = {f} * 2\nelse:\n    {f2} = {f} - 1",
            "if bool(({x} {<|>} {s}).all()):\n    {x} += 1",
        ],
    ),
    "keep": (4, ["kept.append({x})", "kept.append({x}.clone())", "kept.append({x}[..., :1])", "kept[-1].add_({m})"]),
    "rebind": (6, ["del {x}", "{x} = {y}", "{x} = {x} + {s}", "{x} = {x}.detach()", "{x} = None", "{x} = {x} * {y}"]),
    "backward": (
        6,
        [
            "{g}.sum().backward()",
            "{g}.sum().backward(retain_graph=True)",
            "{g}.mean().backward()",
            "({g} * {fy}).sum().backward()",
            "{g}.backward(torch.ones_like({g}))",
            "F.cross_entropy({g}.flatten(1), {classes}).backward()",
            "torch.log_softmax({g}, {d}).sum().backward()",
            "F.layer_norm({g}, {g}.shape[-1:]).pow(2).sum().backward()",
            "with torch.no_grad():\n    {leaf} -= 0.1 * {leaf}.grad",
            "with torch.no_grad():\n    {leaf}.mul_(0.9)",
            "{leaf}.grad = None",
            "{leaf}.grad.zero_()",
            "torch.nn.utils.clip_grad_norm_([{leaf}, {leaf}], 1.0)",
            "{g}.register_hook(lambda g: g * 2)",
            "{leaf}.grad.mul_({s})",
        ],
    ),
    "autocast": (
        2,
        [
            "with torch.autocast(dev, dtype=torch.bfloat16):\n    {f2} = F.linear({f}, {matrix})",
            "with torch.autocast(dev, dtype=torch.bfloat16):\n    {f2} = torch.tanh({f} @ {same}.mT) * {s}",
        ],
    ),
    "loop": (
        4,
        [
            "for j in range({m}):\n    {f} = {f} * 0.5 + j",
            "for j in range({m}):\n    {f}.add_({fy}, alpha=j)",
            "for j in range({m}):\n    {f} = torch.tanh({f} * {s})\n    reads.append({f}.sum().item())",
            "for j in range({m}):\n    {f} = torch.softmax({f}, -1) + j\n    {f}[..., :1] *= 2",
            "for j in range({x}.size(0)):\n    {x}[j] = {x}[j] + j",
            "for j in range({m}):\n    {x} = torch.cat([{x}, {x}[..., :1]], -1)",
            "for j in range({m}):\n    {x} = {x}.transpose(0, -1).contiguous()",
        ],
    ),
}

#: The CPU's default is foreach=False, the device's True; some optimizers change the gradients only with the latter.
OPTIMIZERS = (
    "torch.optim.SGD({p}, lr=0.1, foreach={q})",
    "torch.optim.SGD({p}, lr=0.05, momentum=0.9, nesterov=True, foreach={q})",
    "torch.optim.SGD({p}, lr=0.05, weight_decay=0.1, foreach={q})",
    "torch.optim.Adam({p}, lr=0.01, foreach={q})",
    "torch.optim.Adam({p}, lr=0.01, amsgrad=True, foreach={q})",
    "torch.optim.Adam({p}, lr=0.01, fused=True)",
    "torch.optim.AdamW({p}, lr=0.01, foreach={q})",
    "torch.optim.AdamW({p}, lr=0.01, fused=True)",
    "torch.optim.AdamW({p}, lr=0.01, foreach={q})",
    "torch.optim.RMSprop({p}, lr=0.01, momentum=0.5, centered={q}, foreach={q})",
    "torch.optim.Adagrad({p}, lr=0.1, foreach={q})",
    "torch.optim.Adadelta({p}, foreach={q})",
    "torch.optim.NAdam({p}, lr=0.01, foreach={q})",
    "torch.optim.RAdam({p}, lr=0.01, foreach={q})",
    "torch.optim.Adamax({p}, lr=0.01, foreach={q})",
)
