//! Products with weights: one launch for all matrices of a kind that have the same inputs.

use crate::MatrixBias;
use crate::device::memory::arena::Block;
use crate::device::memory::buffer::Buffer;
use crate::device::operands::matrix::{Matrix, form, slice_bytes};
use crate::device::operands::tensor::Tensor;
use crate::device::operations::rows::Vector;
use crate::device::state::DeviceOps;
use crate::device::work::arg::Arg;
use crate::error::StepError;
use crate::{BlockType, WeightType};

/// Matrices with the same inputs. They lie where they are: a launch takes up to three.
pub struct Group<const N: usize> {
    pub(crate) members: [MatrixBias<DeviceOps>; N],
}

/// Most matrices of a launch.
const MAX_MEMBERS: usize = 3;

/// Parts of a sum, each a warp's in kernels for few rows.
pub(crate) const PARTS: usize = 4;

/// Rows of the largest tile for few rows: weights are read once for this many.
const MAX_ROWS: usize = 64;

/// Blocks that keep a device busy: about its number of multiprocessors, 60 to 170 on current cards. Chosen by us.
const BUSY: usize = 100;

/// Shared memory for the stages of a block: the smallest limit of all cards minus the other uses.
const MAX_STAGES: usize = 96 << 10;

/// The part of a product that a block makes, see product.h. Results do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// So many rows, 8 to 64 in powers of two, of 16 or 32 outputs.
    Rows(usize),
    /// So many rows and as many outputs, 64 or 128. Not for 32-bit floats.
    Square(usize),
}

impl Shape {
    /// Shape for `n_rows` rows: no taller than the rows fill, and smaller than a square if squares would be too few.
    pub(crate) fn for_rows(n_rows: usize) -> Self {
        Self::Rows(n_rows.next_power_of_two().clamp(8, MAX_ROWS))
    }

    /// Shape for the product of `n_rows` rows with matrices of these numbers of outputs.
    fn choose(weight_type: WeightType, n_rows: usize, n_outs: impl Iterator<Item = usize> + Clone) -> Self {
        let is_busy = |size: usize| {
            n_rows.div_ceil(size) * n_outs.clone().map(|n_out| n_out.div_ceil(size)).sum::<usize>() >= BUSY
        };
        let square = [128, 64].into_iter().find(|size| n_rows > size / 2 && is_busy(*size));
        match square.filter(|_| weight_type != WeightType::F32) {
            Some(size) => Self::Square(size),
            None => Self::for_rows(n_rows),
        }
    }

    /// Rows of a block.
    pub(crate) fn n_rows(self) -> usize {
        match self {
            Self::Rows(n_rows) | Self::Square(n_rows) => n_rows,
        }
    }

    fn kernel(self, weight_type: WeightType) -> &'static str {
        let names = kernels(weight_type);
        match self {
            Self::Rows(n_rows) => names[(n_rows.trailing_zeros() as usize - 3).min(3)],
            Self::Square(64) => names[4],
            Self::Square(_) => names[5],
        }
    }

    /// Outputs of a block, its threads, and its shared memory in bytes, as product.h and product_f32.cu have them.
    fn extent(self, weight_type: WeightType) -> (usize, u32, usize) {
        let row = if weight_type == WeightType::Bf16 { 128 } else { 64 };
        let n_rows = self.n_rows();
        let (n_outs, n_threads, stages, sums) = match self {
            Self::Rows(_) if weight_type == WeightType::F32 => {
                (32, 128, PARTS * (3 * 32 * 36 + 32 * n_rows) * 4, PARTS * n_rows * 32 * 4)
            }
            Self::Rows(_) => {
                let (n_slices, room) = if n_rows > 16 { (2, 24 << 10) } else { (1, 16 << 10) };
                let stage = n_slices * slice_bytes(weight_type) + n_rows * row;
                let n_outs = 16 * n_slices;
                (n_outs, 128, PARTS * (room / stage).min(8) * stage, PARTS * n_rows * n_outs * 4)
            }
            Self::Square(size) => {
                let stage = size / 16 * slice_bytes(weight_type) + size * row;
                (size, 2 * size as u32, (MAX_STAGES / stage).min(4) * stage, 4 * size * size)
            }
        };
        (n_outs, n_threads, stages.max(sums) + 4 * n_rows)
    }
}

/// A matrix of a launch.
pub(crate) struct Member {
    weight: Arg,
    bias: Arg,
    n_out: usize,
    result: Arg,
}

impl Member {
    /// The matrix at `weight`, or 0 where the launch has a table, its bias, and where its product goes.
    pub(crate) fn new(weight: u64, bias: Option<&Vector>, result: &mut Tensor) -> Self {
        let bias = bias.map_or(Arg::NULL, |bias| (&bias.data).into());
        Self { weight: Arg::Pointer(weight), bias, n_out: result.width, result: result.write() }
    }
}

/// The rows of experts, as `group_pairs` of experts.cu makes them.
pub(crate) struct ExpertTiles<'a> {
    pub(crate) tiles: &'a Block,
    pub(crate) n_tiles: usize,
    /// The row of the input for each pair; the pair's own where there is none.
    pub(crate) rows: Option<&'a Block>,
    /// Addresses of the experts' matrices.
    pub(crate) table: &'a Buffer,
}

/// Kernels for tiles of 8, 16, 32 and 64 rows, and for squares of 64 and 128.
pub(crate) fn kernels(weight_type: WeightType) -> [&'static str; 6] {
    macro_rules! names {
        ($kind:literal) => {
            [
                concat!("product_", $kind, "_8"),
                concat!("product_", $kind, "_16"),
                concat!("product_", $kind, "_32"),
                concat!("product_", $kind, "_64"),
                concat!("product_", $kind, "_64x64"),
                concat!("product_", $kind, "_128x128"),
            ]
        };
    }
    match weight_type {
        // It has no squares.
        WeightType::F32 => names!("f32"),
        WeightType::Bf16 => names!("bf16"),
        WeightType::Int8 => names!("int8"),
        WeightType::Int4 => names!("int4"),
        WeightType::Blocks(BlockType::Q8_0) => names!("q8_0"),
        WeightType::Blocks(BlockType::Q4K) => names!("q4_k"),
        WeightType::Blocks(BlockType::Q6K) => names!("q6_k"),
    }
}

/// The product with one matrix.
pub(crate) fn linear(ops: &DeviceOps, x: &Tensor, weight: &Matrix, bias: Option<&Vector>) -> Result<Tensor, StepError> {
    let mut result = ops.tensor_of(x.n_rows, x.n_real, weight.n_out)?;
    let member = Member::new(weight.data.address(), bias, &mut result);
    let shape = Shape::choose(weight.weight_type, x.n_rows, std::iter::once(weight.n_out));
    ops.launch_product(x, weight.weight_type, weight.n_in, &[member], shape, None)?;
    Ok(result)
}

/// The products with the members, in as few launches as their types allow.
pub(crate) fn linear_group<const N: usize>(
    ops: &DeviceOps,
    x: &Tensor,
    group: &Group<N>,
) -> Result<[Tensor; N], StepError> {
    let mut results = Vec::with_capacity(N);
    for (weight, _) in &group.members {
        results.push(ops.tensor_of(x.n_rows, x.n_real, weight.n_out)?);
    }
    let mut kinds: Vec<WeightType> = Vec::new();
    for (weight, _) in &group.members {
        if !kinds.contains(&weight.weight_type) {
            kinds.push(weight.weight_type);
        }
    }
    let n_in = group.members.first().map_or(0, |(weight, _)| weight.n_in);
    for weight_type in kinds {
        let members = group.members.iter().zip(&mut results);
        let members = members.filter(|((weight, _), _)| weight.weight_type == weight_type);
        let members: Vec<Member> =
            members.map(|((weight, bias), result)| Member::new(weight.data.address(), bias.as_ref(), result)).collect();
        for members in members.chunks(MAX_MEMBERS) {
            let shape = Shape::choose(weight_type, x.n_rows, members.iter().map(|member| member.n_out));
            ops.launch_product(x, weight_type, n_in, members, shape, None)?;
        }
    }
    let Ok(results) = results.try_into() else { unreachable!("one result for each member") };
    Ok(results)
}

impl DeviceOps {
    /// Appends the product of `x` with up to three matrices, or with the experts' matrices.
    pub(crate) fn launch_product(
        &self,
        x: &Tensor,
        weight_type: WeightType,
        n_in: usize,
        members: &[Member],
        shape: Shape,
        experts: Option<&ExpertTiles<'_>>,
    ) -> Result<(), StepError> {
        let n_tiles = experts.map_or_else(|| x.n_rows.div_ceil(shape.n_rows()), |experts| experts.n_tiles);
        if n_tiles == 0 {
            return Ok(());
        }
        let (rows, scales) = match form(weight_type) {
            None => (x.read(), Arg::NULL),
            Some(form) => {
                let prepared = self.prepared(x, form)?;
                let has_scales = weight_type.is_integer();
                (Arg::Pointer(prepared.rows), if has_scales { Arg::Pointer(prepared.scales) } else { Arg::NULL })
            }
        };
        let (n_outs, n_threads, shared) = shape.extent(weight_type);
        let of = |arg: &dyn Fn(&Member) -> Arg, none: Arg| -> [Arg; MAX_MEMBERS] {
            std::array::from_fn(|index| members.get(index).map_or(none, arg))
        };
        let mut args = vec![rows, scales];
        args.extend(of(&|member| member.weight, Arg::NULL));
        args.extend(of(&|member| member.bias, Arg::NULL));
        args.extend(of(&|member| member.result, Arg::NULL));
        args.extend(of(&|member| member.n_out.into(), Arg::I32(0)));
        args.extend::<[Arg; 2]>([n_in.into(), x.n_rows.into()]);
        match experts {
            None => args.extend([Arg::NULL; 3]),
            Some(ExpertTiles { tiles, rows, table, .. }) => {
                args.extend([(*tiles).into(), rows.map_or(Arg::NULL, Arg::from), (*table).into()]);
            }
        }
        let n_blocks = members.iter().map(|member| member.n_out.div_ceil(n_outs)).sum();
        self.launch(shape.kernel(weight_type), [n_blocks, n_tiles, 1], n_threads, shared as u32, &args);
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests;
