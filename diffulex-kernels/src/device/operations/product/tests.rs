//! Products and experts on a GPU or its emulator: every way of holding a weight, at every number of rows.

use super::*;
use crate::device::operands::matrix::slice_bytes;
use crate::reference::ReferenceOps;
use crate::routing::{ExpertBias, ExpertGroups, Routing, Scoring};
use crate::tests::{assert_close, blocks, bytes, every_gpu, product, values};
use crate::{Activation, GatedMlp, ModelBatch, Ops, WeightData};

pub(crate) const WEIGHT_TYPES: [WeightType; 7] = [
    WeightType::F32,
    WeightType::Bf16,
    WeightType::Int8,
    WeightType::Int4,
    WeightType::Blocks(BlockType::Q8_0),
    WeightType::Blocks(BlockType::Q4K),
    WeightType::Blocks(BlockType::Q6K),
];

/// A weight of any kind, as a checkpoint has it.
struct Stored {
    bytes: Vec<u8>,
    weight_type: WeightType,
    n_out: usize,
    n_in: usize,
}

impl Stored {
    /// `n_in` is rounded up to whole blocks.
    fn new(weight_type: WeightType, seed: u64, n_out: usize, n_in: usize) -> Self {
        match weight_type {
            WeightType::Blocks(kind) => {
                let n_in = n_in.next_multiple_of(kind.n_values());
                Self { bytes: blocks(kind, seed, n_out * n_in / kind.n_values()), weight_type, n_out, n_in }
            }
            _ => Self { bytes: bytes(&values(seed, n_out * n_in)), weight_type, n_out, n_in },
        }
    }

    fn matrix<O: Ops>(&self, ops: &O) -> O::Matrix {
        let data = match self.weight_type {
            WeightType::Blocks(kind) => WeightData::Blocks(kind, &self.bytes),
            _ => WeightData::F32(&self.bytes),
        };
        ops.matrix(data, self.n_out, self.n_in, self.weight_type).unwrap()
    }
}

/// Rows of a table by id, on the host.
fn embedded<O: Ops>(ops: &O, table: &O::Matrix, ids: Vec<u32>) -> Vec<f32> {
    let batch = ModelBatch { ids, ..ModelBatch::default() };
    ops.host(&ops.embed(table, &ops.begin(&batch).unwrap()).unwrap()).unwrap()
}

#[test]
fn a_row_is_the_same_in_any_number_of_rows_and_that_of_the_reference() {
    let Some(ops) = every_gpu() else { return };
    for weight_type in WEIGHT_TYPES {
        for (n_out, n_in) in [(1, 1), (17, 24), (50, 331)] {
            let stored = Stored::new(weight_type, 3, n_out, n_in);
            let n_in = stored.n_in;
            let x = values(4, 130 * n_in);
            let weight = stored.matrix(&*ops);
            let all = product(&*ops, &x, n_in, &weight);
            assert_close(&all, &product(&ReferenceOps, &x, n_in, &stored.matrix(&ReferenceOps)));
            for n_rows in [1, 2, 8, 9, 16, 17, 33, 64, 65, 129] {
                let some = product(&*ops, &x[..n_rows * n_in], n_in, &weight);
                assert_eq!(some, all[..n_rows * n_out], "{weight_type:?}, {n_out} x {n_in}, {n_rows} rows");
            }
            // Whatever a block makes.
            for shape in [8, 16, 32, 64].map(Shape::Rows).into_iter().chain([64, 128].map(Shape::Square)) {
                if weight_type == WeightType::F32 && matches!(shape, Shape::Square(_)) {
                    continue;
                }
                let (x, mut result) = (ops.tensor(&x, n_in).unwrap(), ops.tensor_of(130, 130, n_out).unwrap());
                let member = Member::new(weight.data.address(), None, &mut result);
                ops.launch_product(&x, weight_type, n_in, &[member], shape, None).unwrap();
                assert_eq!(ops.host(&result).unwrap(), all, "{weight_type:?}, {n_out} x {n_in}, {shape:?}");
            }
            let last = product(&*ops, &x[129 * n_in..], n_in, &weight);
            assert_eq!(last, all[129 * n_out..], "{weight_type:?}, {n_out} x {n_in}, the last row");
        }
    }
}

#[test]
fn many_rows_come_in_squares_where_these_keep_a_device_busy() {
    let choose = |n_rows, n_outs: &[usize]| Shape::choose(WeightType::Bf16, n_rows, n_outs.iter().copied());
    assert_eq!(choose(1, &[151_936]), Shape::Rows(8));
    assert_eq!(choose(20, &[151_936]), Shape::Rows(32));
    assert_eq!(choose(64, &[2048]), Shape::Rows(64));
    assert_eq!(choose(64, &[6144, 6144]), Shape::Square(64));
    assert_eq!(choose(256, &[2048]), Shape::Square(64));
    assert_eq!(choose(256, &[6144, 6144]), Shape::Square(128));
    assert_eq!(Shape::choose(WeightType::F32, 256, [12_288].into_iter()), Shape::Rows(64));
}

#[test]
fn a_table_holds_what_the_reference_holds() {
    let Some(ops) = every_gpu() else { return };
    // The last ones travel in several pieces.
    let large = [Stored::new(WeightType::F32, 6, 40_000, 1), Stored::new(WeightType::Int8, 6, 130_000, 1)];
    let small = WEIGHT_TYPES.map(|weight_type| Stored::new(weight_type, 5, 37, 331));
    for stored in small.iter().chain(&large) {
        let n = stored.n_out as u32;
        let ids: Vec<u32> = if n < 100 { (0..n).collect() } else { (0..n).step_by(997).chain([n - 1]).collect() };
        let got = embedded(&*ops, &stored.matrix(&*ops), ids.clone());
        assert_eq!(got, embedded(&ReferenceOps, &stored.matrix(&ReferenceOps), ids), "{:?}", stored.weight_type);
    }
}

#[test]
fn members_of_a_group_are_multiplied_in_one_launch_with_the_same_results() {
    let Some(ops) = every_gpu() else { return };
    let vector = |n: usize| ops.vector(WeightData::F32(&bytes(&values(8, n)))).unwrap();
    for weight_type in WEIGHT_TYPES {
        let stored = [17, 64, 33].map(|n_out| Stored::new(weight_type, n_out as u64, n_out, 100));
        let members =
            stored.each_ref().map(|stored| (stored.matrix(&*ops), (stored.n_out > 20).then(|| vector(stored.n_out))));
        let x = ops.tensor(&values(7, 20 * stored[0].n_in), stored[0].n_in).unwrap();
        let alone =
            members.each_ref().map(|(weight, bias)| ops.host(&ops.linear(&x, weight, bias.as_ref()).unwrap()).unwrap());
        for ((weight, bias), got) in members.iter().zip(&alone) {
            let plain = ops.host(&ops.linear(&x, weight, None).unwrap()).unwrap();
            let biases = values(8, plain.len() / 20);
            let added = |i: usize| if bias.is_some() { biases[i % biases.len()] } else { 0.0 };
            let want: Vec<f32> = plain.iter().enumerate().map(|(i, x)| x + added(i)).collect();
            assert_eq!(*got, want, "{weight_type:?}");
        }
        let group = ops.group(members).unwrap();
        diffulex_gpu_emulator::reset_counters();
        let together = ops.linear_group(&x, &group).unwrap();
        assert_eq!(together.map(|product| ops.host(&product).unwrap()), alone, "{weight_type:?}");
        if let Some(counters) = diffulex_gpu_emulator::counters().filter(|counters| counters.kernels > 0) {
            // The rows were rounded before.
            assert_eq!(counters.kernels, 1, "{weight_type:?}");
        }
    }
}

#[test]
fn weights_are_read_once_for_64_rows() {
    let Some(ops) = every_gpu() else { return };
    for weight_type in WEIGHT_TYPES {
        let stored = Stored::new(weight_type, 1, 64, 512);
        let weight = stored.matrix(&*ops);
        for n_rows in [1, 8, 9, 30, 64, 65, 130] {
            let x = values(2, n_rows * stored.n_in);
            diffulex_gpu_emulator::reset_counters();
            product(&*ops, &x, stored.n_in, &weight);
            let Some(loads) = diffulex_gpu_emulator::loads().filter(|loads| !loads.is_empty()) else { return };
            let of_weight = loads.iter().filter(|loads| loads.address == weight.data.address());
            let read: u64 = of_weight.map(|loads| loads.n_bytes).sum();
            let n_weights = stored.n_out * stored.n_in;
            let once = match weight_type {
                WeightType::F32 => 4 * n_weights,
                _ => n_weights / (16 * 64) * slice_bytes(weight_type),
            };
            // The scale of an output is read for every row.
            let scales = if weight_type == WeightType::Int8 { 4 * n_rows * stored.n_out } else { 0 };
            assert_eq!(read as usize, once * n_rows.div_ceil(64) + scales, "{weight_type:?}, {n_rows} rows");
        }
    }
}

/// A router's rule of `index`.
fn routing(index: usize, n_experts: usize) -> Routing {
    let bias = values(40, n_experts);
    Routing {
        n_chosen: 1 + 2 * index,
        scoring: if index.is_multiple_of(2) { Scoring::Softmax } else { Scoring::Sigmoid },
        bias: match index {
            0 => ExpertBias::Absent,
            1 => ExpertBias::Choice(bias),
            _ => ExpertBias::ChoiceAndWeight(bias),
        },
        groups: (index == 1).then_some(ExpertGroups { n_groups: 4, n_kept: 2 }),
        renormalise: index < 2,
        scale: 1.5,
        expert_scale: (index == 2).then(|| values(41, n_experts)),
    }
}

/// Every expert holds its matrices otherwise than its neighbours do.
fn experts<O: Ops>(ops: &O, n_experts: usize, hidden: usize, inner: usize) -> Vec<GatedMlp<O>> {
    let weight_type = |index: usize| WEIGHT_TYPES[index % WEIGHT_TYPES.len()];
    (0..n_experts)
        .map(|expert| {
            let seed = 3 * expert as u64;
            let matrix = |weight_type, seed, n_out, n_in| Stored::new(weight_type, seed, n_out, n_in).matrix(ops);
            let gate = matrix(weight_type(expert), seed, inner, hidden);
            let up = matrix(weight_type(expert / 2), seed + 1, inner, hidden);
            let gate_up = ops.group([(gate, None), (up, None)]).unwrap();
            let down = matrix(weight_type(expert + 1), seed + 2, hidden, inner);
            GatedMlp { gate_up, down, activation: Activation::Silu }
        })
        .collect()
}

#[test]
fn experts_are_their_mlps_summed_by_weight_and_a_row_does_not_depend_on_the_rows_beside_it() {
    let Some(ops) = every_gpu() else { return };
    // Whole blocks, so that all kinds fit.
    let (n_experts, hidden, inner) = (20, 256, 256);
    let mlps = experts(&*ops, n_experts, hidden, inner);
    for (index, n_rows) in [2, 70, 5].into_iter().enumerate() {
        let routing = routing(index, n_experts);
        let x = values(9, n_rows * hidden);
        let logits: Vec<f32> = values(10, n_rows * n_experts).iter().map(|logit| 4.0 * logit).collect();
        let stacked = ops.layer_experts(experts(&*ops, n_experts, hidden, inner), routing.clone()).unwrap();
        let run = |x: &[f32], logits: &[f32]| {
            let (x, logits) = (ops.tensor(x, hidden).unwrap(), ops.tensor(logits, n_experts).unwrap());
            ops.host(&ops.experts(&x, &logits, &stacked).unwrap()).unwrap()
        };
        let together = run(&x, &logits);
        // Some rows by themselves, and the MLPs of their experts one by one.
        for row in (0..n_rows).step_by(1 + n_rows / 4) {
            let (x, logits) = (&x[row * hidden..][..hidden], &logits[row * n_experts..][..n_experts]);
            let got = &together[row * hidden..][..hidden];
            assert_eq!(run(x, logits), got, "rule {index}, row {row}");
            let mut want = vec![0.0f32; hidden];
            for choice in routing.choose(logits) {
                let result = mlps[choice.expert].apply(&*ops, &ops.tensor(x, hidden).unwrap()).unwrap();
                for (sum, value) in want.iter_mut().zip(ops.host(&result).unwrap()) {
                    *sum += choice.weight * value;
                }
            }
            assert_close(got, &want);
        }
    }
}

#[test]
fn the_choice_of_many_experts_is_that_of_the_host() {
    let Some(ops) = every_gpu() else { return };
    // An expert that multiplies by its number: the weighted sum tells who was chosen.
    for (n_experts, rule) in [(3, 2), (64, 1), (300, 0), (512, 2)] {
        let mlps: Vec<GatedMlp<DeviceOps>> = (0..n_experts)
            .map(|expert| {
                let one =
                    |value: f32| ops.matrix(WeightData::F32(&value.to_le_bytes()), 1, 1, WeightType::F32).unwrap();
                let gate_up = ops.group([(one(1.0), None), (one(1.0), None)]).unwrap();
                GatedMlp { gate_up, down: one((expert + 1) as f32), activation: Activation::Silu }
            })
            .collect();
        let routing = routing(rule, n_experts);
        let n_rows = 9;
        // Coarse, so that there are ties.
        let logits: Vec<f32> = values(11, n_rows * n_experts).iter().map(|logit| (4.0 * logit).round()).collect();
        let stacked = ops.layer_experts(mlps, routing.clone()).unwrap();
        let (x, on_device) = (ops.tensor(&[1.0; 9], 1).unwrap(), ops.tensor(&logits, n_experts).unwrap());
        let got = ops.host(&ops.experts(&x, &on_device, &stacked).unwrap()).unwrap();
        let unit = 1.0 / (1.0 + (-1.0f32).exp());
        for (got, logits) in got.iter().zip(logits.chunks(n_experts)) {
            let want: f32 =
                routing.choose(logits).iter().map(|choice| choice.weight * unit * (choice.expert + 1) as f32).sum();
            assert!((got - want).abs() <= 1e-4 * (1.0 + want.abs()), "{n_experts} experts: {got}, expected {want}");
        }
    }
}
