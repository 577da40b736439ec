//! SHA-256 (FIPS 180-4), for the hashes that `scripts/ptx` writes.

/// The digest in lower-case hexadecimal digits.
pub(crate) fn sha256(data: &[u8]) -> String {
    let mut state: [u32; 8] =
        first_primes(8).map(|prime| fraction(prime, 2)).collect::<Vec<_>>().try_into().expect("8");
    let constants: Vec<u32> = first_primes(64).map(|prime| fraction(prime, 3)).collect();
    let mut message = data.to_vec();
    message.push(0x80);
    message.resize((message.len() + 8).next_multiple_of(64) - 8, 0);
    message.extend((data.len() as u64 * 8).to_be_bytes());
    for block in message.chunks(64) {
        let mut words: Vec<u32> =
            block.chunks(4).map(|word| u32::from_be_bytes(word.try_into().expect("4 bytes"))).collect();
        for i in 16..64 {
            let (a, b) = (words[i - 15], words[i - 2]);
            let low = a.rotate_right(7) ^ a.rotate_right(18) ^ a >> 3;
            let high = b.rotate_right(17) ^ b.rotate_right(19) ^ b >> 10;
            words.push(words[i - 16].wrapping_add(low).wrapping_add(words[i - 7]).wrapping_add(high));
        }
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = state;
        for (word, constant) in words.iter().zip(&constants) {
            let sum = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
            let choice = e & f ^ !e & g;
            let first = h.wrapping_add(sum).wrapping_add(choice).wrapping_add(*constant).wrapping_add(*word);
            let sum = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
            let second = sum.wrapping_add(a & b ^ a & c ^ b & c);
            (h, g, f, e, d, c, b, a) = (g, f, e, d.wrapping_add(first), c, b, a, first.wrapping_add(second));
        }
        for (word, added) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
            *word = word.wrapping_add(added);
        }
    }
    state.iter().map(|word| format!("{word:08x}")).collect()
}

fn first_primes(n: usize) -> impl Iterator<Item = u64> {
    (2u64..).filter(|n| (2..*n).all(|divisor| !n.is_multiple_of(divisor))).take(n)
}

/// The first 32 bits behind the point of the square root or the cube root.
fn fraction(prime: u64, power: u32) -> u32 {
    let target = u128::from(prime) << (32 * power);
    let (mut low, mut high) = (0u128, 1u128 << 40);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if middle.pow(power) <= target { low = middle } else { high = middle }
    }
    low as u32
}

#[test]
fn known_digests() {
    assert_eq!(sha256(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    // The length does not fit behind the text in its block.
    let two_blocks = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    assert_eq!(sha256(two_blocks), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}
