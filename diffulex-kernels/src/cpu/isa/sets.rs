//! Kernels compiled for each instruction set that the target may have, and chosen by [`Simd`](super::simd::Simd).

#[cfg(target_arch = "aarch64")]
pub(crate) use super::arm::{NeonBf16, NeonDotprod};
pub(crate) use super::vector::Portable;
#[cfg(target_arch = "x86_64")]
pub(crate) use super::x86::{Avx2, Avx512, Avx512Bf16, AvxVnni};

/// Declares `$name(simd, args...)`, which calls `$body::<V>(args...)` compiled for the instructions of `simd`.
///
/// Sets that differ only in what a body does not use share one copy of it: a body of `floats` uses neither products of bytes
/// nor of bfloat16, one of `quads` those of bytes, one of `pairs` those of bfloat16.
macro_rules! for_each_instruction_set {
    (of $kind:ident: $(#[$doc:meta])* $vis:vis fn $name:ident => $body:ident($($arg:ident: $type:ty),* $(,)?)) => {
        $(#[$doc])*
        $vis fn $name(simd: Simd, $($arg: $type),*) {
            use $crate::cpu::isa::sets;
            sets::on_set!($kind, simd, $body($($arg: $type),*))
        }
    };
}
pub(crate) use for_each_instruction_set;

/// The call of a body on an instruction set.
macro_rules! on_set {
    (floats, $simd:ident, $body:ident($($arg:ident: $type:ty),*)) => {
        match $simd {
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512Bf16 | Simd::Avx512 => sets::compiled_for!(Avx512, $body($($arg: $type),*)),
            #[cfg(target_arch = "x86_64")]
            Simd::AvxVnni | Simd::Avx2 => sets::compiled_for!(Avx2, $body($($arg: $type),*)),
            #[cfg(target_arch = "aarch64")]
            Simd::NeonBf16 | Simd::NeonDotprod => sets::compiled_for!(Neon, $body($($arg: $type),*)),
            // SAFETY: every machine has what `Portable` needs.
            Simd::Portable => unsafe { $body::<sets::Portable>($($arg),*) },
        }
    };
    (quads, $simd:ident, $body:ident($($arg:ident: $type:ty),*)) => {
        match $simd {
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512Bf16 | Simd::Avx512 => sets::compiled_for!(Avx512, $body($($arg: $type),*)),
            #[cfg(target_arch = "x86_64")]
            Simd::AvxVnni => sets::compiled_for!(AvxVnni, $body($($arg: $type),*)),
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => sets::compiled_for!(Avx2, $body($($arg: $type),*)),
            #[cfg(target_arch = "aarch64")]
            Simd::NeonBf16 => sets::compiled_for!(NeonBf16, $body($($arg: $type),*)),
            #[cfg(target_arch = "aarch64")]
            Simd::NeonDotprod => sets::compiled_for!(NeonDotprod, $body($($arg: $type),*)),
            // SAFETY: every machine has what `Portable` needs.
            Simd::Portable => unsafe { $body::<sets::Portable>($($arg),*) },
        }
    };
    (pairs, $simd:ident, $body:ident($($arg:ident: $type:ty),*)) => {
        match $simd {
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512Bf16 => sets::compiled_for!(Avx512Bf16, $body($($arg: $type),*)),
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 => sets::compiled_for!(Avx512, $body($($arg: $type),*)),
            #[cfg(target_arch = "x86_64")]
            Simd::AvxVnni | Simd::Avx2 => sets::compiled_for!(Avx2, $body($($arg: $type),*)),
            #[cfg(target_arch = "aarch64")]
            Simd::NeonBf16 => sets::compiled_for!(NeonBf16, $body($($arg: $type),*)),
            #[cfg(target_arch = "aarch64")]
            Simd::NeonDotprod => sets::compiled_for!(NeonDotprod, $body($($arg: $type),*)),
            // SAFETY: every machine has what `Portable` needs.
            Simd::Portable => unsafe { $body::<sets::Portable>($($arg),*) },
        }
    };
}
pub(crate) use on_set;

/// The call of a body with the instructions of a vector.
macro_rules! compiled_for {
    (Avx512Bf16, $body:ident $args:tt) => {
        sets::compiled_with!("avx512f,avx512bw,avx512vnni,avx512bf16", Avx512Bf16, $body $args)
    };
    (Avx512, $body:ident $args:tt) => { sets::compiled_with!("avx512f,avx512bw,avx512vnni", Avx512, $body $args) };
    (AvxVnni, $body:ident $args:tt) => { sets::compiled_with!("avx2,fma,avxvnni", AvxVnni, $body $args) };
    (Avx2, $body:ident $args:tt) => { sets::compiled_with!("avx2,fma", Avx2, $body $args) };
    (NeonBf16, $body:ident $args:tt) => { sets::compiled_with!("bf16,i8mm", NeonBf16, $body $args) };
    (NeonDotprod, $body:ident $args:tt) => { sets::compiled_with!("dotprod", NeonDotprod, $body $args) };
    // Of floats: without the products of either.
    (Neon, $body:ident $args:tt) => { sets::compiled_with!("neon", NeonDotprod, $body $args) };
}
pub(crate) use compiled_for;

/// Calls a body through a function that has the instructions.
macro_rules! compiled_with {
    ($instructions:literal, $vector:ident, $body:ident($($arg:ident: $type:ty),*)) => {{
        #[target_feature(enable = $instructions)]
        fn compiled($($arg: $type),*) {
            // SAFETY: this function has the instructions.
            unsafe { $body::<sets::$vector>($($arg),*) }
        }
        // SAFETY: a value of `Simd` exists only where its instructions were found.
        unsafe { compiled($($arg),*) }
    }};
}
pub(crate) use compiled_with;

#[cfg(test)]
mod tests {
    use crate::cpu::isa::simd::Simd;
    use crate::cpu::isa::vector::{LANES, Vector};

    for_each_instruction_set! {
        of quads:
        /// Where `start` and the products of the bytes, and of their lower and upper halves, with every input come to.
        fn sums => sums_body(start: i32, bytes: &[u8; 4 * LANES], inputs: &[[i8; 4]], sums: &mut [[f32; LANES]; 3])
    }

    #[inline(always)]
    unsafe fn sums_body<V: Vector>(
        start: i32,
        bytes: &[u8; 4 * LANES],
        inputs: &[[i8; 4]],
        sums: &mut [[f32; LANES]; 3],
    ) {
        // SAFETY: passed on from the caller.
        unsafe {
            let [low, high] = V::load_halves(bytes);
            for (quads, sums) in [V::load_quads(bytes), low, high].into_iter().zip(sums) {
                let add = |sum, input: &[i8; 4]| {
                    let bits = u32::from_le_bytes(input.map(|input| input as u8));
                    V::add_quads(sum, quads, f32::from_bits(bits))
                };
                V::from_ints(inputs.iter().fold(V::ints(start), add)).store(sums);
            }
        }
    }

    #[test]
    fn every_instruction_set_multiplies_bytes_exactly() {
        const START: i32 = -123_456;
        // Of four products of the largest size no instruction may stop at 16 bits.
        let all_bytes: [[u8; 4 * LANES]; 5] = [
            [0xff; 4 * LANES],
            [0x80; 4 * LANES],
            [0; 4 * LANES],
            std::array::from_fn(|place| (place * 37) as u8),
            std::array::from_fn(|place| (255 - place * 4) as u8),
        ];
        let inputs = [[127; 4], [-128; 4], [-128, 127, -1, 0], [1, 2, 3, 4], [-127, 0, 0, 0]];
        for bytes in &all_bytes {
            for n_inputs in 0..=inputs.len() {
                let inputs = &inputs[..n_inputs];
                let want = [|byte: u8| byte, |byte: u8| byte & 0xf, |byte: u8| byte >> 4].map(|part| {
                    std::array::from_fn(|lane| {
                        let quad = bytes.as_chunks::<4>().0[lane].map(part);
                        let products = inputs.iter().flat_map(|input| quad.into_iter().zip(*input));
                        (START + products.map(|(byte, input)| i32::from(byte) * i32::from(input)).sum::<i32>()) as f32
                    })
                });
                for simd in Simd::all() {
                    let mut got = [[0.0; LANES]; 3];
                    sums(simd, START, bytes, inputs, &mut got);
                    assert_eq!(got, want, "{simd:?}, {bytes:?}, {inputs:?}");
                }
            }
        }
    }
}
