"""A Gaussian process on a few hundred points, with one length scale for each input.

Notation
    n, d    points and inputs
    X, y    inputs, shape (n, d), of the order of 1; targets, shape (n,), standardised here to mean 0 and variance 1
    l       length scales, shape (d,)
    s2, e2  variances of the signal and of the noise
    r2      sum over inputs of (x - x')**2 / l**2

    k(x, x') = s2 * (1 + sqrt(5 r2) + 5/3 r2) * exp(-sqrt(5 r2))          (Matern 5/2)

l, s2 and e2 maximise the posterior: the marginal likelihood of y times log-normal priors. The mode of a length scale's
prior grows with the root of d, so that points stay correlated with many inputs (Hvarfner, Hellsten and Nardi, "Vanilla
Bayesian Optimization Performs Great in High Dimensions", ICML 2024).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hisearch.base.dtypes import F8

_ROOT5 = math.sqrt(5.0)
_JITTER = 1e-8
_DRAW_JITTER = 1e-6

#: Means and standard deviations of the priors' logarithms: of a length scale at d = 1 (half the log of d is added), of
#: s2 and of e2.
_SCALE_PRIOR = (math.sqrt(2.0), math.sqrt(3.0))
_SIGNAL_PRIOR = (0.0, 1.0)
_NOISE_PRIOR = (-5.0, 1.5)
#: Bounds on the logarithms of l, s2 and e2.
_BOUNDS = ((-2.5, 6.0), (-4.0, 4.0), (-10.0, 0.0))


@dataclass(frozen=True)
class GaussianProcess:
    """A fitted process; see the module's notation. theta: logarithms of (l, s2, e2), shape (d + 2,)."""

    theta: F8
    inputs: F8
    _low: F8
    _weights: F8
    _mean: float
    _scale: float

    @classmethod
    def fit(cls, inputs: F8, targets: F8, start: F8, steps: int = 60) -> GaussianProcess:
        """Fit to ``inputs``, shape (n, d), and finite ``targets``, shape (n,).

        Args:
            inputs: X.
            targets: y, in units of their own.
            start: theta to start from: of an earlier fit, or ``parameter_means``.
            steps: most iterations of the optimiser.
        """
        from scipy.optimize import minimize

        mean, scale = float(targets.mean()), float(targets.std()) or 1.0
        scaled = (targets - mean) / scale
        prior = _prior(inputs.shape[1])
        bounds = [_BOUNDS[0]] * inputs.shape[1] + [*_BOUNDS[1:]]
        optimum = minimize(
            _negative_posterior,
            np.clip(start, *np.array(bounds).T),
            args=(inputs, scaled, prior),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": steps},
        )
        return cls._conditioned(np.asarray(optimum.x), inputs, scaled, mean, scale)

    @classmethod
    def _conditioned(cls, theta: F8, inputs: F8, scaled: F8, mean: float, scale: float) -> GaussianProcess:
        signal, noise = np.exp(theta[-2]), np.exp(theta[-1])
        covariance = signal * _matern(_distances(inputs, inputs, theta)) + (noise + _JITTER) * np.eye(len(inputs))
        low = np.linalg.cholesky(covariance)
        return cls(theta, inputs, low, _solve(low, scaled), mean, scale)

    def predict(self, inputs: F8) -> tuple[F8, F8]:
        """(mean, standard deviation) of the targets without noise at ``inputs``, shape (m, d); each of shape (m,)."""
        from scipy.linalg import solve_triangular

        signal = float(np.exp(self.theta[-2]))
        cross = signal * _matern(_distances(inputs, self.inputs, self.theta))
        explained = solve_triangular(self._low, cross.T, lower=True, check_finite=False)
        variance = np.maximum(signal - np.einsum("nm,nm->m", explained, explained), 0.0)
        return self._mean + self._scale * (cross @ self._weights), self._scale * np.sqrt(variance)

    def draw(self, inputs: F8, normals: F8) -> F8:
        """Joint draws of the targets without noise at ``inputs``, shape (m, d), from ``normals``, (m, s): (m, s)."""
        from scipy.linalg import solve_triangular

        signal = float(np.exp(self.theta[-2]))
        cross = signal * _matern(_distances(inputs, self.inputs, self.theta))
        explained = solve_triangular(self._low, cross.T, lower=True, check_finite=False)
        covariance = signal * _matern(_distances(inputs, inputs, self.theta)) - explained.T @ explained
        low = np.linalg.cholesky(covariance + _DRAW_JITTER * signal * np.eye(len(inputs)))
        return self._mean + self._scale * ((cross @ self._weights)[:, None] + low @ normals)


def parameter_means(d: int) -> F8:
    """Start without knowledge: the means of theta's prior, shape (d + 2,)."""
    return _prior(d)[0]


def _prior(d: int) -> tuple[F8, F8]:
    """(means, standard deviations) of theta's normal prior, each of shape (d + 2,)."""
    mean = np.array([_SCALE_PRIOR[0] + 0.5 * math.log(d)] * d + [_SIGNAL_PRIOR[0], _NOISE_PRIOR[0]])
    return mean, np.array([_SCALE_PRIOR[1]] * d + [_SIGNAL_PRIOR[1], _NOISE_PRIOR[1]])


def _distances(rows: F8, columns: F8, theta: F8) -> F8:
    """sqrt(5 r2) between the rows of ``rows``, shape (m, d), and ``columns``, shape (n, d): shape (m, n)."""
    scales = np.exp(-theta[:-2])
    left, right = rows * scales, columns * scales
    squared = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2.0 * left @ right.T
    return np.asarray(_ROOT5 * np.sqrt(np.maximum(squared, 0.0)))


def _matern(distance: F8) -> F8:
    return np.asarray((1.0 + distance + distance**2 / 3.0) * np.exp(-distance))


def _solve(low: F8, right: F8) -> F8:
    """``A^-1 right`` for ``A = low low^T``."""
    from scipy.linalg import cho_solve

    return np.asarray(cho_solve((low, True), right, check_finite=False))


def _negative_posterior(theta: F8, inputs: F8, scaled: F8, prior: tuple[F8, F8]) -> tuple[float, F8]:
    """Minus the logarithm of the posterior of theta, up to a constant, and its gradient, shape (d + 2,)."""
    n = len(scaled)
    signal, noise = np.exp(theta[-2]), np.exp(theta[-1])
    distance = _distances(inputs, inputs, theta)
    correlation = _matern(distance)
    low = np.linalg.cholesky(signal * correlation + (noise + _JITTER) * np.eye(n))
    inverse = _solve(low, np.eye(n))
    alpha = inverse @ scaled
    value = 0.5 * float(scaled @ alpha) + float(np.log(np.diag(low)).sum())
    # d value / d K, contracted with d K / d theta.
    outer = 0.5 * (inverse - np.outer(alpha, alpha))
    slope = outer * (signal * (5.0 / 3.0) * (1.0 + distance) * np.exp(-distance))
    gradient = np.empty_like(theta)
    # The sum over pairs of slope * (x - x')**2, by input.
    spread = 2.0 * (slope.sum(axis=1) @ inputs**2 - np.einsum("nd,nd->d", inputs, slope @ inputs))
    gradient[:-2] = spread * np.exp(-2.0 * theta[:-2])
    gradient[-2] = float((outer * correlation).sum()) * signal
    gradient[-1] = float(np.trace(outer)) * noise
    mean, deviation = prior
    pull = (theta - mean) / deviation
    return value + 0.5 * float(pull @ pull), gradient + pull / deviation
