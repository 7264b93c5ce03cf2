"""Gates: estimate Leave-One-Out for all features at once, in few forward and backward passes.

What belongs here: explainers that differentiate the output with respect to the removal of a feature, one explainer per
file, and the machinery that they share. Not here: removals themselves and Leave-One-Out
(`faithcheck.explainers.loo`).

A gate m_i in [0, 1] scales feature i from removed, 0, to unchanged, 1. For removal by attention mask it scales key i's
attention weight in every row of every layer, A_k ∝ m_k exp z_k; where a model multiplies by the mask, it stands in
place of the mask's 1. For removal by the baseline it scales the input, x′_i + m_i (x_i − x′_i). Leave-One-Out is

    LOO_i = f(m_i = 1) − f(m_i = 0) = ∫₀¹ ∂f/∂m_i dm_i.

The explainers evaluate the derivative at one point, or at a few, for all features at once:

1. `mask_gate`: the derivative at m = 1. It sees nothing of the path from 1 to 0.
2. `finite_mask_gate`: without key i, a row's weights A_k become A_k / (1 − A_i), so that its output O_j changes by
   exactly A_ji (V_i − O_j) / (1 − A_ji). This finite change is multiplied by the gradient at O_j and summed over rows,
   heads and layers. Only the response of the layers above stays first-order.
3. `grouped_mask_gate`: the derivative halfway is a better mean over the path than the derivative at 1, but each feature
   has a path of its own. Where many features are halfway at once, each sees the others as noise. So only one group of
   features is halfway at a time.
4. `readout_gate`: the direct effect on the readout row exactly, the indirect effect by gates.

A removed token's own row is read by no other row, so its change counts only where the output is read at that row. The
derivative at 1 counts it all the same: along m_i V_i(m_i) from 1 to 0 the integral is V_i(1), while the derivative at 1
is V_i(1) + V_i′(1). Without a token's own row the finite gate is nearer to Leave-One-Out: r 0.82 instead of 0.72 on
SST-2 (docs/results/remedies.md).

All gates assume a model in eval mode. `mask_gate` follows the attention mask wherever the model uses it. The others
assume attention of the features to each other alone, and that positions other than the features, such as a class
token, come before the features. All gates are derived here.
"""
