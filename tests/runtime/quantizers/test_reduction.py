"""Amax taken over the ranks of a group: each rank quantizes as one process would the whole."""

import pytest
import torch
import torch.multiprocessing as mp

from qrole.dtypes import DType
from qrole.quantizers import Float8CurrentScalingQuantizer, NVFP4Quantizer
from qrole.quantizers.reduction import reduce_amax

WHOLE = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
WHOLE[:16] *= 50


def _quantizers(group=None, reduced=True):
    options = {"with_amax_reduction": reduced, "amax_reduction_group": group}
    rht = {"with_rht": True, "with_post_rht_amax": True}
    return [
        Float8CurrentScalingQuantizer(DType.kFloat8E4M3, "cpu", **options),
        NVFP4Quantizer(**options),
        NVFP4Quantizer(with_2d_quantization=True, **options),
        NVFP4Quantizer(**rht, **options),
    ]


def _rank(rank, file, results):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=2
    )
    part = WHOLE.chunk(2)[rank]
    alone = torch.distributed.new_group([0]), torch.distributed.new_group([1])
    made = [q(part) for group in (None, alone[rank]) for q in _quantizers(group)]
    results[rank] = [(m.rowwise_data, m.amax_columnwise) for m in made]
    torch.distributed.destroy_process_group()


def test_two_ranks(tmp_path):
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(_rank, args=(tmp_path / "meeting", results), nprocs=2)
        ranks = [results[0], results[1]]
    for i, quantizer in enumerate(_quantizers(reduced=False)):
        whole = quantizer(WHOLE)
        assert torch.equal(torch.cat([rank[i][0] for rank in ranks]), whole.rowwise_data)
        assert all(rank[i][1] == whole.amax_columnwise for rank in ranks)
        for rank, part in zip(ranks, WHOLE.chunk(2), strict=True):
            data, amax = rank[4 + i]
            own = quantizer(part)
            assert torch.equal(data, own.rowwise_data), "a group of one reduces nothing"
            assert amax == own.amax_columnwise


def test_without_a_process_group_nothing_is_reduced():
    amax = torch.tensor(3.0)
    assert reduce_amax(amax, None) is amax
    for reduced, plain in zip(_quantizers(), _quantizers(reduced=False), strict=True):
        assert torch.equal(reduced(WHOLE).rowwise_data, plain(WHOLE).rowwise_data)


@pytest.mark.gpu
def test_a_scale_on_the_cpu_quantizes_a_tensor_on_the_gpu():
    from qrole.quantizers import Float8Quantizer

    quantizer = Float8Quantizer(torch.tensor(2.0), torch.zeros(1), DType.kFloat8E4M3)
    quantized = quantizer(WHOLE.cuda())
    assert quantized.device.type == "cuda"
    assert quantizer.amax == WHOLE.float().abs().max()
