//! Known values of every wrapper of `device.h`, on a GPU where `DIFFULEX_GPU` is set.

use half::{bf16, f16};

use crate::device::{Arg, Device, Shape};

const PRIMS: &str = include_str!("../../../diffulex-kernels/gpu/ptx/prims.ptx");

fn one_block(block: u32, shared: u32) -> Shape {
    Shape { grid: 1, block, shared }
}

/// Whole numbers that look drawn, from -100 to 100.
fn number(i: usize) -> i32 {
    (i * 7919 + i * i * 31) as i32 % 201 - 100
}

/// Rows of `a` times rows of `b`, added to numbers that were there.
fn expected(a: &[i32], b: &[i32], k: usize, before: impl Fn(usize) -> i32) -> Vec<i32> {
    let product = |row: usize, column: usize| -> i32 { (0..k).map(|i| a[row * k + i] * b[column * k + i]).sum() };
    (0..16 * 8).map(|at| before(at) + product(at / 8, at % 8)).collect()
}

#[test]
fn a_bf16_product_is_exact_on_whole_numbers() {
    for device in Device::of_each_engine(PRIMS) {
        let a: Vec<i32> = (0..16 * 16).map(number).collect();
        let b: Vec<i32> = (0..8 * 16).map(|i| number(i + 1000)).collect();
        let rounded = |values: &[i32]| values.iter().map(|x| bf16::from_f32(*x as f32)).collect::<Vec<_>>();
        let before: Vec<f32> = (0..16 * 8).map(|i| i as f32).collect();
        let sums = device.put(&before);
        let args = [Arg::Pointer(device.put(&rounded(&a))), Arg::Pointer(device.put(&rounded(&b))), Arg::Pointer(sums)];
        device.launch("prim_mma_bf16", one_block(32, 0), &args).unwrap();
        let result: Vec<f32> = device.get(sums, 16 * 8).unwrap();
        let exact: Vec<f32> = expected(&a, &b, 16, |at| at as i32).iter().map(|x| *x as f32).collect();
        assert_eq!(result, exact);
    }
}

#[test]
fn products_of_bytes_are_exact() {
    for device in Device::of_each_engine(PRIMS) {
        for (kernel, k) in [("prim_mma_int8", 32), ("prim_mma_int8_k16", 16)] {
            let mut a: Vec<i32> = (0..16 * k).map(number).collect();
            let mut b: Vec<i32> = (0..8 * k).map(|i| number(i + 500)).collect();
            // The ends of the range.
            (a[0], a[1], b[0], b[1]) = (-128, 127, -128, -128);
            let bytes = |values: &[i32]| values.iter().map(|x| *x as i8).collect::<Vec<_>>();
            let before: Vec<i32> = (0..16 * 8).map(|i| i * 1_000_003).collect();
            let sums = device.put(&before);
            let args = [Arg::Pointer(device.put(&bytes(&a))), Arg::Pointer(device.put(&bytes(&b))), Arg::Pointer(sums)];
            device.launch(kernel, one_block(32, 0), &args).unwrap();
            let result: Vec<i32> = device.get(sums, 16 * 8).unwrap();
            assert_eq!(result, expected(&a, &b, k, |at| before[at]), "{kernel}");
        }
    }
}

#[test]
fn matrices_are_loaded_by_rows_and_by_columns() {
    for device in Device::of_each_engine(PRIMS) {
        let x: Vec<u16> = (0..32 * 8).map(|i| i as u16 + 1).collect();
        let (plain, transposed) = (device.allocate(512).unwrap(), device.allocate(512).unwrap());
        let args = [Arg::Pointer(device.put(&x)), Arg::Pointer(plain), Arg::Pointer(transposed)];
        device.launch("prim_load_matrix", one_block(32, 512), &args).unwrap();
        // The last row is not copied: zeros are there instead.
        let value = |matrix: usize, row: usize, column: usize| {
            if matrix * 8 + row == 31 { 0 } else { u32::from(x[(matrix * 8 + row) * 8 + column]) }
        };
        let by_lane = |value: &dyn Fn(usize, usize, usize) -> u32| -> Vec<u32> {
            let of = |at: usize| (at % 4, at / 4 / 4, at / 4 % 4 * 2);
            let pair = |(matrix, i, j)| value(matrix, i, j) | value(matrix, i, j + 1) << 16;
            (0..32 * 4).map(|at| pair(of(at))).collect()
        };
        assert_eq!(device.get::<u32>(plain, 128).unwrap(), by_lane(&value));
        assert_eq!(device.get::<u32>(transposed, 128).unwrap(), by_lane(&|matrix, i, j| value(matrix, j, i)));
    }
}

#[test]
fn groups_of_copies_come_in_order() {
    for device in Device::of_each_engine(PRIMS) {
        let x: Vec<f32> = (0..3 * 64 * 4).map(|i| number(i) as f32).collect();
        let y = device.allocate(64 * 4 * 4).unwrap();
        device
            .launch("prim_copy_groups", one_block(64, 3072), &[Arg::Pointer(device.put(&x)), Arg::Pointer(y)])
            .unwrap();
        let sum = |at: usize| -> f32 { (0..3).map(|stage| x[(stage * 64 + ((at / 4) ^ 33)) * 4 + at % 4]).sum() };
        assert_eq!(device.get::<f32>(y, 64 * 4).unwrap(), (0..64 * 4).map(sum).collect::<Vec<f32>>());
    }
}

/// Numbers at the ends of formats, between two of their values, and many that look drawn.
fn numbers() -> Vec<f32> {
    let mut numbers = vec![
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.1,
        65504.0,
        65519.9,
        65520.0,
        1e-8,
        2e-8,
        3e-8,
        6.1e-5,
        6.097e-5,
        5.96e-8,
        8.94e-8,
        1e38,
        -1e38,
        3.4e38,
        1e-40,
        -1e-40,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        0.5,
        1.5,
        2.5,
        -2.5,
        1e10,
        -1e10,
        2_147_483_520.0,
        -2_147_483_648.0,
    ];
    let mut bits = 1u32;
    for _ in 0..4000 {
        bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        numbers.push(f32::from_bits(bits));
        numbers.push(f32::from_bits(bits % (16 << 23) + (119 << 23)));
    }
    numbers
}

#[test]
fn conversions_and_arithmetic_round_as_ieee_says() {
    for device in Device::of_each_engine(PRIMS) {
        let x = numbers();
        let results = device.allocate(x.len() * 12 * 4).unwrap();
        let shape = Shape { grid: (x.len() as u32).div_ceil(128), block: 128, shared: 0 };
        let args = [Arg::Pointer(device.put(&x)), Arg::Pointer(results), Arg::I32(x.len() as i32)];
        device.launch("prim_arithmetic", shape, &args).unwrap();
        let results: Vec<u32> = device.get(results, x.len() * 12).unwrap();
        // Of a NaN only that it is one.
        let same = |a: f32, b: f32| a == b && a.is_sign_negative() == b.is_sign_negative() || a.is_nan() && b.is_nan();
        for (i, (x, got)) in x.iter().zip(results.chunks(12)).enumerate() {
            let as_bf16 = |bits: u32| f32::from(bf16::from_bits(bits as u16));
            let index = (i * 517) as u16;
            let bf16_of = |x: f32| bf16::from_f32(x).to_f32();
            assert!(same(as_bf16(got[0]), bf16_of(*x)) && same(as_bf16(got[0] >> 16), bf16_of(-x)), "{x:e}: {got:x?}");
            assert!(same(as_bf16(got[1]), bf16_of(*x)), "{x:e}: {got:x?}");
            assert!(same(f32::from_bits(got[2]), bf16::from_bits(index).to_f32()), "{index:x}: {got:x?}");
            assert!(same(f16::from_bits(got[3] as u16).to_f32(), f16::from_f32(*x).to_f32()), "{x:e}: {got:x?}");
            assert!(same(f32::from_bits(got[4]), f16::from_bits(index).to_f32()), "{index:x}: {got:x?}");
            let (power, exact) = (f64::from(f32::from_bits(got[5])), f64::from(*x).exp2());
            let is_close =
                (power - exact).abs() <= exact * 4.0 / f64::from(1 << 23) || exact < 1.2e-38 && power < 1.2e-38;
            assert!(
                is_close || exact > f64::from(f32::MAX) && power.is_infinite() || x.is_nan() && power.is_nan(),
                "{x:e}"
            );
            let bits = x.to_bits();
            assert_eq!(got[6], if bits >> 31 == 1 { !bits } else { bits | 1 << 31 });
            assert_eq!(got[7], bits);
            let bytes = |word: u32| word.to_le_bytes().map(|byte| i32::from(byte as i8));
            let pairs = bytes(bits).into_iter().zip(bytes((i as u32).wrapping_mul(0x0103_0507)));
            assert_eq!(got[8], pairs.map(|(a, b)| a * b).sum::<i32>().wrapping_add(i as i32) as u32);
            assert!(same(f32::from_bits(got[9]), x / 3.0), "{x:e}: {got:x?}");
            assert_eq!(got[10] as i32, if x.is_nan() { 0 } else { x.round_ties_even() as i32 }, "{x:e}");
            assert!(same(f32::from_bits(got[11]), x * x + x), "{x:e}: {got:x?}");
        }
    }
}

#[test]
fn lanes_and_threads_exchange_what_they_hold() {
    for device in Device::of_each_engine(PRIMS) {
        let x: Vec<i32> = (0..96).map(|i| i * 37 % 96).collect();
        let results = device.allocate(96 * 8 * 4).unwrap();
        device
            .launch("prim_shuffles", one_block(96, 0), &[Arg::Pointer(device.put(&x)), Arg::Pointer(results)])
            .unwrap();
        let results: Vec<i32> = device.get(results, 96 * 8).unwrap();
        let n_odd = x.iter().filter(|x| *x & 1 == 1).count() as i32;
        for (thread, got) in results.chunks(8).enumerate() {
            let warp = &x[thread / 32 * 32..][..32];
            let lane = thread % 32;
            let votes = (0..32).filter(|i| warp[*i] & 1 == 1).fold(0u32, |votes, i| votes | 1 << i);
            let any = i32::from(warp.iter().any(|x| *x > 90)) * 2 + 1;
            let up = warp[lane.checked_sub(3).unwrap_or(lane)];
            let down = *warp.get(lane + 3).unwrap_or(&warp[lane]);
            assert_eq!(got, [warp[5], warp[lane ^ 16], up, down, votes as i32, any, n_odd, 2], "thread {thread}");
        }
    }
}

#[test]
fn atomics_of_whole_numbers_lose_nothing() {
    for device in Device::of_each_engine(PRIMS) {
        let x: Vec<u64> =
            (0..256).map(|i| (i * i * 0x0123_4567_89ab) % 100_003 * if i % 3 == 0 { 1 << 40 } else { 1 }).collect();
        let sums = device.put(&[0u64; 4]);
        let shape = Shape { grid: 4, block: 64, shared: 16 };
        device.launch("prim_atomics", shape, &[Arg::Pointer(device.put(&x)), Arg::Pointer(sums)]).unwrap();
        let even = x.iter().filter(|x| *x % 2 == 0).sum();
        let below = x.iter().filter(|x| **x < 1000).count() as u64;
        let exact = [x.iter().sum(), even, *x.iter().max().unwrap(), below];
        assert_eq!(device.get::<u64>(sums, 4).unwrap(), exact);
    }
}
