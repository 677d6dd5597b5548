//! Header field hashes are well distributed.

use super::field_hash::FieldHasher;

/// Distributes 64 texts that differ only in digits over 32 sets, once for each choice of bits. Returns how many sets
/// get more than 8.
fn overfull_sets(hasher: &FieldHasher, texts: &[String]) -> usize {
    let name = hasher.begin(b"x-name");
    let hashes: Vec<u64> =
        texts.iter().map(|text| FieldHasher::hash(hasher.extend(name, text.as_bytes()))).collect();
    let mut sets = [[0; 32]; 5];
    for hash in hashes {
        for (counts, shift) in sets.iter_mut().zip([0, 8, 32, 48, 59]) {
            counts[(hash >> shift & 31) as usize] += 1;
        }
    }
    sets.as_flattened().iter().filter(|count| **count > 8).count()
}

#[test]
fn hashes_of_similar_header_texts_are_spread() {
    let random = |number: u64| FieldHasher::hash(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for length in [1, 3, 4, 7, 8, 9, 15, 16, 17, 30, 40] {
        let texts: Vec<String> = (0..64).map(|number| format!("{number:0length$}")).collect();
        let seeds = (1..=200).map(|seed| FieldHasher { start: random(seed), key: random(seed + 1000) });
        let sum: usize = seeds.map(|hasher| overfull_sets(&hasher, &texts)).sum();
        // Chance alone would give about 8 of these 32,000. Without the last step of the hash there are many times more.
        assert!(sum < 25, "{length}: {sum}");
    }
}

#[test]
fn header_hash_depends_on_every_byte_and_length() {
    let hasher = FieldHasher::new();
    let texts = (0..100).flat_map(|length| {
        (0..=length).map(move |at| (0..length).map(|place| u8::from(place == at)).collect::<Vec<_>>())
    });
    let mut hashes: Vec<u64> = texts.map(|text| FieldHasher::hash(hasher.begin(&text))).collect();
    hashes.sort_unstable();
    assert!(hashes.windows(2).all(|pair| pair[0] != pair[1]));
}
