//! Routed experts: the choice, the order of pairs and the sum by kernels of `gpu/experts.cu`, products by the kernels of matrix products.

use crate::device::memory::arena::Block;
use crate::device::memory::buffer::Buffer;
use crate::device::operands::matrix::Matrix;
use crate::device::operands::tensor::Tensor;
use crate::device::operations::product::{ExpertTiles, Member, Shape};
use crate::device::operations::rows::bytes_of;
use crate::device::state::DeviceOps;
use crate::device::work::arg::Arg;
use crate::error::StepError;
use crate::routing::{ExpertBias, ExpertGroups, Routing, Scoring};
use crate::{GatedMlp, Ops, WeightError, WeightType};

/// The experts of a layer.
pub struct Experts {
    mlps: Vec<GatedMlp<DeviceOps>>,
    routing: Routing,
    bias: Option<Buffer>,
    expert_scale: Option<Buffer>,
    gate_up: Vec<Table>,
    down: Vec<Table>,
}

/// Addresses of the experts' matrices that are held in one way, [`PLACES`] for each expert; 0 where one is held otherwise.
struct Table {
    weight_type: WeightType,
    addresses: Buffer,
}

/// Addresses of an expert in a table, as product.h has them.
const PLACES: usize = 3;

/// Pairs of rows and experts, in device memory.
struct Pairs {
    places: Block,
    weights: Block,
    tiles: Block,
    rows: Block,
    n: usize,
    n_chosen: usize,
    n_tiles: usize,
    shape: Shape,
}

/// Makes the experts of a layer ready: tables of addresses. Their matrices stay where they are.
pub(crate) fn layer_experts(
    ops: &DeviceOps,
    mlps: Vec<GatedMlp<DeviceOps>>,
    routing: Routing,
) -> Result<Experts, WeightError> {
    ops.device.driver.prepare(&["choose_experts", "group_pairs", "combine_experts"]);
    let bias = match &routing.bias {
        ExpertBias::Absent => None,
        ExpertBias::Choice(bias) | ExpertBias::ChoiceAndWeight(bias) => Some(ops.hold(&bytes_of(bias))?),
    };
    let expert_scale = routing.expert_scale.as_ref().map(|scale| ops.hold(&bytes_of(scale))).transpose()?;
    let gate_up: Vec<Vec<&Matrix>> =
        mlps.iter().map(|mlp| mlp.gate_up.members.iter().map(|(matrix, _)| matrix).collect()).collect();
    let down: Vec<Vec<&Matrix>> = mlps.iter().map(|mlp| vec![&mlp.down]).collect();
    let (gate_up, down) = (ops.tables(&gate_up)?, ops.tables(&down)?);
    Ok(Experts { mlps, routing, bias, expert_scale, gate_up, down })
}

/// Products of pairs of a row and an expert, in the order of experts.
pub(crate) fn experts(ops: &DeviceOps, x: &Tensor, logits: &Tensor, experts: &Experts) -> Result<Tensor, StepError> {
    let mut result = ops.tensor_of(x.n_rows, x.n_real, x.width)?;
    let Some(first) = experts.mlps.first().filter(|_| x.n_rows > 0) else { return Ok(result) };
    let pairs = ops.pair(logits, experts)?;
    let [(gate_matrix, _), (up_matrix, _)] = &first.gate_up.members;
    let pair_rows = |width: usize| ops.tensor_of(pairs.n, pairs.n, width);
    let (mut gate, mut up) = (pair_rows(gate_matrix.n_out)?, pair_rows(up_matrix.n_out)?);
    ops.multiply_experts(x, &pairs, Some(&pairs.rows), &experts.gate_up, gate_matrix.n_in, &mut [&mut gate, &mut up])?;
    let activated = ops.gate(gate, &up, first.activation)?;
    let mut down = pair_rows(first.down.n_out)?;
    ops.multiply_experts(&activated, &pairs, None, &experts.down, first.down.n_in, &mut [&mut down])?;
    let args: [Arg; 6] = [
        down.read(),
        (&pairs.places).into(),
        (&pairs.weights).into(),
        pairs.n_chosen.into(),
        down.width.into(),
        result.write(),
    ];
    ops.launch("combine_experts", [down.width.div_ceil(256), x.n_rows, 1], 256, 0, &args);
    Ok(result)
}

impl DeviceOps {
    /// A table for each way in which the experts' matrices are held.
    fn tables(&self, experts: &[Vec<&Matrix>]) -> Result<Vec<Table>, WeightError> {
        let mut kinds: Vec<WeightType> = Vec::new();
        for matrix in experts.iter().flatten() {
            if !kinds.contains(&matrix.weight_type) {
                kinds.push(matrix.weight_type);
            }
        }
        let table = |weight_type: WeightType| {
            let address = |matrix: &Matrix| if matrix.weight_type == weight_type { matrix.data.address() } else { 0 };
            let addresses: Vec<u8> = experts
                .iter()
                .flat_map(|matrices| (0..PLACES).map(|place| matrices.get(place).map_or(0, |matrix| address(matrix))))
                .flat_map(u64::to_le_bytes)
                .collect();
            Ok(Table { weight_type, addresses: self.hold(&addresses)? })
        };
        kinds.into_iter().map(table).collect()
    }

    /// Chooses the experts of every row and puts the pairs in the order of experts.
    fn pair(&self, logits: &Tensor, experts: &Experts) -> Result<Pairs, StepError> {
        let Routing { scoring, bias, groups, renormalise, scale, .. } = &experts.routing;
        let n_experts = experts.mlps.len();
        let n_chosen = experts.routing.n_chosen.min(n_experts);
        let n = logits.n_rows * n_chosen;
        let (chosen, weights) = (self.alloc(4 * n)?, self.alloc(4 * n)?);
        let buffer = |buffer: &Option<Buffer>| buffer.as_ref().map_or(Arg::NULL, Arg::from);
        let flag = |value: bool| Arg::I32(i32::from(value));
        let ExpertGroups { n_groups, n_kept } = groups.unwrap_or(ExpertGroups { n_groups: 0, n_kept: 0 });
        let args: [Arg; 13] = [
            logits.read(),
            buffer(&experts.bias),
            buffer(&experts.expert_scale),
            n_experts.into(),
            n_chosen.into(),
            flag(*scoring == Scoring::Softmax),
            flag(matches!(bias, ExpertBias::ChoiceAndWeight(_))),
            n_groups.into(),
            n_kept.into(),
            flag(*renormalise),
            (*scale).into(),
            (&chosen).into(),
            (&weights).into(),
        ];
        self.launch("choose_experts", [logits.n_rows, 1, 1], 32, 20 * n_experts as u32, &args);

        // Tiles of about twice the rows that an expert has: most have one, and little of it is empty.
        let shape = Shape::for_rows((2 * n.div_ceil(n_experts)).min(logits.n_rows));
        let n_most = shape.n_rows();
        let n_tiles = n.min(n_experts + n / n_most);
        let (tiles, rows, places) = (self.alloc(12 * n_tiles)?, self.alloc(4 * n)?, self.alloc(4 * n)?);
        let args: [Arg; 9] = [
            (&chosen).into(),
            n.into(),
            n_chosen.into(),
            n_experts.into(),
            n_most.into(),
            n_tiles.into(),
            (&tiles).into(),
            (&rows).into(),
            (&places).into(),
        ];
        self.launch("group_pairs", [n_experts, 1, 1], 128, 4 * n_experts as u32 + 32, &args);
        Ok(Pairs { places, weights, tiles, rows, n, n_chosen, n_tiles, shape })
    }

    /// The products of pairs with their experts' matrices, one for each of `results`.
    fn multiply_experts(
        &self,
        x: &Tensor,
        pairs: &Pairs,
        rows: Option<&Block>,
        tables: &[Table],
        n_in: usize,
        results: &mut [&mut Tensor],
    ) -> Result<(), StepError> {
        let members: Vec<Member> = results.iter_mut().map(|result| Member::new(0, None, result)).collect();
        for Table { weight_type, addresses } in tables {
            let Pairs { tiles, n_tiles, shape, .. } = pairs;
            let tiles = ExpertTiles { tiles, n_tiles: *n_tiles, rows, table: addresses };
            self.launch_product(x, *weight_type, n_in, &members, *shape, Some(&tiles))?;
        }
        Ok(())
    }
}
