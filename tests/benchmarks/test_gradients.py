"""Recorded gradients: all layers of both models, the same at each recording."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.training.gradients import Key, Textures, record

BOTH = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("model, layer", [("gpt", "tokens.weight"), ("resnet", "head.weight")])
def test_gradients_of_all_layers_in_both_dtypes(model, layer):
    found = record((model,), (0,), BOTH)
    names = [key.layer for key in found if key.dtype == torch.float32]
    assert list(found) == [Key(model, name, 0, dtype) for dtype in BOTH for name in names]
    assert layer in names and len(set(names)) == len(names) > 10
    for key, value in found.items():
        assert value.dtype == key.dtype and value.isfinite().all(), key
    # A bf16 model has the gradient of the fp32 model, up to the rounding of 20 layers (0.3 of its
    # norm in the ResNet); unrelated gradients would be off by 1.4.
    fp32, bf16 = (
        torch.cat([found[Key(model, n, 0, dtype)].double().flatten() for n in names]).numpy()
        for dtype in BOTH
    )
    assert 0 < np.linalg.norm(fp32 - bf16) < 0.5 * np.linalg.norm(fp32)


def test_a_recording_repeats_whatever_else_is_recorded():
    alone = record(("gpt",), (1,), (torch.float32,))
    among_others = record(("gpt",), (0, 1), BOTH)
    assert {key.step for key in among_others} == {0, 1}
    for key, value in alone.items():
        assert torch.equal(value, among_others[key]), key
        before = among_others[key._replace(step=0)]
        assert not torch.equal(value, before), key
    other_seed = record(("gpt",), (1,), (torch.float32,), seed=1)
    assert all(not torch.equal(value, other_seed[key]) for key, value in alone.items())


def test_images_of_a_class_resemble_each_other():
    generator = torch.Generator().manual_seed(0)
    images, labels = Textures(generator).draw(600, generator)
    assert images.shape == (600, 3, 32, 32) and set(labels.tolist()) == set(range(10))
    # The place of a grating is random, so its power spectrum is what a class shares.
    power = np.abs(np.fft.fft2(images.double().numpy())) ** 2
    spectra = np.log1p(power).reshape(600, -1)
    known, asked = labels[:500].numpy(), labels[500:].numpy()
    centres = np.stack([spectra[:500][known == c].mean(0) for c in range(10)])
    nearest = ((spectra[500:, None] - centres) ** 2).sum(-1).argmin(1)
    assert (nearest == asked).mean() > 0.8


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((("bert",),), "model 'bert'; allowed: gpt, resnet"),
        ((("gpt",), (-1,)), "step -1; allowed: integers >= 0"),
        ((("gpt",), (0,), (torch.float16,)), "dtype torch.float16; allowed: torch.float32, "),
    ],
)
def test_what_is_not_there_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        record(*arguments)


def test_the_number_of_threads_is_restored():
    before = torch.get_num_threads()
    torch.set_num_threads(2)  # a recording takes one
    try:
        record(("gpt",), (0,), (torch.float32,))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
