//! Products with weights: one launch for all matrices of a kind that have the same inputs.

use super::arena::Block;
use super::device::Buffer;
use super::matrix::{Matrix, form, slice_bytes};
use super::queue::Arg;
use super::rows::Vector;
use super::tensor::Tensor;
use super::{CudaOps, Weighted};
use crate::error::StepError;
use crate::kernels::{BlockType, HoldError, WeightType};

/// Matrices with the same inputs. They lie where they are: a launch takes up to three.
pub struct Group<const N: usize> {
    pub(super) members: [Weighted<CudaOps>; N],
}

/// Most matrices of a launch.
const MAX_MEMBERS: usize = 3;

/// Threads of a block, of which each warp sums up a part of the inputs.
const THREADS: u32 = 32 * WARPS as u32;
const WARPS: usize = 4;

/// Rows of the largest tile: weights are read once for so many.
const MAX_TILE: usize = 64;

/// A matrix of a launch: its address or 0 where the launch has a table, its bias, and where its product goes.
pub(super) struct Member<'a> {
    pub(super) weight: u64,
    pub(super) bias: Option<&'a Vector>,
    pub(super) n_out: usize,
    pub(super) result: &'a Tensor,
}

/// The rows of experts, as `group_pairs` of experts.cu makes them.
pub(super) struct ExpertTiles<'a> {
    pub(super) tiles: &'a Block,
    pub(super) n_tiles: usize,
    /// Rows of a tile.
    pub(super) n_most: usize,
    /// The row of the input for each pair; the pair's own where there is none.
    pub(super) rows: Option<&'a Block>,
    /// Addresses of the experts' matrices.
    pub(super) table: &'a Buffer,
}

/// Rows of the tiles that `n_rows` are cut into.
pub(super) fn tile_rows(n_rows: usize) -> usize {
    n_rows.next_power_of_two().clamp(8, MAX_TILE)
}

/// Kernels for tiles of 8, 16, 32 and 64 rows.
fn kernels(hold: WeightType) -> [&'static str; 4] {
    match hold {
        WeightType::F32 => ["product_f32_8", "product_f32_16", "product_f32_32", "product_f32_64"],
        WeightType::Bf16 => ["product_bf16_8", "product_bf16_16", "product_bf16_32", "product_bf16_64"],
        WeightType::Int8 => ["product_int8_8", "product_int8_16", "product_int8_32", "product_int8_64"],
        WeightType::Int4 => ["product_int4_8", "product_int4_16", "product_int4_32", "product_int4_64"],
        WeightType::Blocks(BlockType::Q8_0) => {
            ["product_q8_0_8", "product_q8_0_16", "product_q8_0_32", "product_q8_0_64"]
        }
        WeightType::Blocks(BlockType::Q4K) => {
            ["product_q4_k_8", "product_q4_k_16", "product_q4_k_32", "product_q4_k_64"]
        }
        WeightType::Blocks(BlockType::Q6K) => {
            ["product_q6_k_8", "product_q6_k_16", "product_q6_k_32", "product_q6_k_64"]
        }
    }
}

/// Outputs of a block and its shared memory in bytes, as product.h and product_f32.cu have them.
fn extent(hold: WeightType, n_most: usize) -> (usize, usize) {
    let (n_outs, stages) = match form(hold) {
        None => (32, WARPS * (3 * 32 * 36 + 32 * n_most) * 4),
        Some(_) => {
            let n_slices = if n_most > 16 { 2 } else { 1 };
            let row = if hold == WeightType::Bf16 { 128 } else { 64 };
            let stage = n_slices * slice_bytes(hold) + n_most * row;
            let room = if n_most > 16 { 24 << 10 } else { 16 << 10 };
            (16 * n_slices, WARPS * (room / stage).min(8) * stage)
        }
    };
    let sums = WARPS * n_most * n_outs * 4;
    (n_outs, stages.max(sums) + 4 * n_most)
}

impl CudaOps {
    pub(super) fn join<const N: usize>(&self, members: [Weighted<Self>; N]) -> Result<Group<N>, HoldError> {
        Ok(Group { members })
    }

    pub(super) fn multiply(&self, x: &Tensor, weight: &Matrix, bias: Option<&Vector>) -> Result<Tensor, StepError> {
        let result = self.tensor_of(x.n_rows, x.n_real, weight.n_out)?;
        let member = Member { weight: weight.data.address(), bias, n_out: weight.n_out, result: &result };
        self.launch_product(x, weight.hold, weight.n_in, &[member], None)?;
        Ok(result)
    }

    pub(super) fn multiply_group<const N: usize>(
        &self,
        x: &Tensor,
        group: &Group<N>,
    ) -> Result<[Tensor; N], StepError> {
        let mut results = Vec::with_capacity(N);
        for (weight, _) in &group.members {
            results.push(self.tensor_of(x.n_rows, x.n_real, weight.n_out)?);
        }
        let mut kinds: Vec<WeightType> = Vec::new();
        for (weight, _) in &group.members {
            if !kinds.contains(&weight.hold) {
                kinds.push(weight.hold);
            }
        }
        for hold in kinds {
            let members = group.members.iter().zip(&results).filter(|((weight, _), _)| weight.hold == hold);
            let members: Vec<Member<'_>> = members
                .map(|((weight, bias), result)| Member {
                    weight: weight.data.address(),
                    bias: bias.as_ref(),
                    n_out: weight.n_out,
                    result,
                })
                .collect();
            let n_in = group.members.first().map_or(0, |(weight, _)| weight.n_in);
            for members in members.chunks(MAX_MEMBERS) {
                self.launch_product(x, hold, n_in, members, None)?;
            }
        }
        let Ok(results) = results.try_into() else { unreachable!("one result for each member") };
        Ok(results)
    }

    /// Appends the product of `x` with up to three matrices, or with those of experts.
    pub(super) fn launch_product(
        &self,
        x: &Tensor,
        hold: WeightType,
        n_in: usize,
        members: &[Member<'_>],
        experts: Option<&ExpertTiles<'_>>,
    ) -> Result<(), StepError> {
        let n_most = experts.map_or_else(|| tile_rows(x.n_rows), |experts| experts.n_most);
        let n_tiles = experts.map_or_else(|| x.n_rows.div_ceil(n_most), |experts| experts.n_tiles);
        if n_tiles == 0 {
            return Ok(());
        }
        let (rows, scales) = match form(hold) {
            None => (x.into(), Arg::NULL),
            Some(form) => {
                let prepared = self.prepared(x, form)?;
                let has_scales = hold.is_integer();
                (Arg::Pointer(prepared.rows), if has_scales { Arg::Pointer(prepared.scales) } else { Arg::NULL })
            }
        };
        let (n_outs, shared) = extent(hold, n_most);
        let of = |arg: &dyn Fn(&Member<'_>) -> Arg, none: Arg| -> [Arg; MAX_MEMBERS] {
            std::array::from_fn(|index| members.get(index).map_or(none, arg))
        };
        let mut args = vec![rows, scales];
        args.extend(of(&|member| Arg::Pointer(member.weight), Arg::NULL));
        args.extend(of(&|member| member.bias.map_or(Arg::NULL, |bias| (&bias.data).into()), Arg::NULL));
        args.extend(of(&|member| member.result.into(), Arg::NULL));
        args.extend(of(&|member| member.n_out.into(), Arg::I32(0)));
        args.extend::<[Arg; 2]>([n_in.into(), x.n_rows.into()]);
        match experts {
            None => args.extend([Arg::NULL; 3]),
            Some(ExpertTiles { tiles, rows, table, .. }) => {
                args.extend([(*tiles).into(), rows.map_or(Arg::NULL, Arg::from), (*table).into()]);
            }
        }
        let n_blocks = members.iter().map(|member| member.n_out.div_ceil(n_outs)).sum();
        let kernel = kernels(hold)[n_most.trailing_zeros() as usize - 3];
        self.launch(kernel, [n_blocks, n_tiles, 1], THREADS, shared as u32, &args);
        Ok(())
    }
}
