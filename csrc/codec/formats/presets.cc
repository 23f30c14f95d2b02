#include "codec/formats/presets.h"

namespace cgx::formats {
namespace {

constexpr Preset kPresets[] = {
    {"fp16", "float exponent=5 mantissa=10", "IEEE 754 binary16; torch.float16"},
    {"bf16", "float exponent=8 mantissa=7", "torch.bfloat16; TPUs, GPUs and CPUs"},
    {"tf32", "float exponent=8 mantissa=10",
     "inputs of matrix products on NVIDIA's GPUs from Ampere"},
    {"e5m2", "float exponent=5 mantissa=2", "OCP FP8, gradients; torch.float8_e5m2"},
    {"e4m3", "float exponent=4 mantissa=3", "FP8 with infinities as IEEE 754 has them; CPD"},
    {"e4m3fn", "float exponent=4 mantissa=3 variant=fn",
     "OCP FP8, weights and activations; torch.float8_e4m3fn"},
    {"e5m2fnuz", "float exponent=5 mantissa=2 variant=fnuz",
     "AMD MI300, Graphcore; torch.float8_e5m2fnuz"},
    {"e4m3fnuz", "float exponent=4 mantissa=3 variant=fnuz",
     "AMD MI300, Graphcore; torch.float8_e4m3fnuz"},
    {"e3m4", "float exponent=3 mantissa=4", "AWS Trainium's FP8"},
    {"e3m2", "float exponent=3 mantissa=2 variant=finite", "OCP FP6, elements of MX blocks"},
    {"e2m3", "float exponent=2 mantissa=3 variant=finite", "OCP FP6, elements of MX blocks"},
    {"e2m1", "float exponent=2 mantissa=1 variant=finite",
     "OCP FP4, elements of MX blocks and NVFP4; torch.float4_e2m1fn_x2"},
    {"e8m0", "float exponent=8 mantissa=0 variant=scale",
     "scales of MX blocks; torch.float8_e8m0fnu"},
    {"binary8p1", "float exponent=7 mantissa=0 variant=p3109", "IEEE P3109, draft"},
    {"binary8p2", "float exponent=6 mantissa=1 variant=p3109", "IEEE P3109, draft"},
    {"binary8p3", "float exponent=5 mantissa=2 variant=p3109", "IEEE P3109, draft"},
    {"binary8p4", "float exponent=4 mantissa=3 variant=p3109", "IEEE P3109, draft"},
    {"binary8p5", "float exponent=3 mantissa=4 variant=p3109", "IEEE P3109, draft"},
    {"binary8p6", "float exponent=2 mantissa=5 variant=p3109", "IEEE P3109, draft"},
    {"binary8p7", "float exponent=1 mantissa=6 variant=p3109", "IEEE P3109, draft"},
    {"mxfp8_e4m3", "block exponent=4 mantissa=3 variant=fn", "OCP MX; NVIDIA Blackwell, AMD MI350"},
    {"mxfp8_e5m2", "block exponent=5 mantissa=2 overflow=saturate variant=ieee", "OCP MX"},
    {"mxfp6_e3m2", "block exponent=3 mantissa=2 variant=finite", "OCP MX; AMD MI350"},
    {"mxfp6_e2m3", "block exponent=2 mantissa=3 variant=finite", "OCP MX; AMD MI350"},
    {"mxfp4", "block exponent=2 mantissa=1 variant=finite", "OCP MX; gpt-oss, Blackwell, MI350"},
    // Numbers k / 64, |k| <= 127: with one bit of exponent all numbers have one step.
    {"mxint8", "block exponent=1 mantissa=6 overflow=saturate variant=fnuz", "OCP MX"},
    {"nvfp4", "block exponent=2 mantissa=1 variant=finite size=16 scale=e4m3",
     "NVIDIA Blackwell; 16 x 16 blocks for weights in training"},
    {"fp8_block128", "block exponent=4 mantissa=3 variant=fn size=128 scale=fp32",
     "DeepSeek-V3: 1 x 128 for activations, 128 x 128 for weights"},
    {"int8", "integer", "quantized training and inference; one scale of the tensor"},
    {"int4", "integer bits=4 per=block", "weights in blocks of 128, as GPTQ and AWQ have them"},
    {"smaq", "zscore", "SmaQ (2021): activations, weights, gradients, optimizer states"},
    {"s2fp8", "s2fp8", "S2FP8 (2020): all tensors of a training"},
};

}  // namespace

std::span<const Preset> presets() { return kPresets; }

}  // namespace cgx::formats
