use serde_json::Value;

use crate::decider::{Decider, vectors};

fn number(text: &Value) -> u64 {
    u64::from_str_radix(text.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
}

pub(crate) const INPUT_BYTES: usize = 3 * 8;
pub(crate) const OUTPUT_BYTES: usize = 7 * 8;

#[test]
fn balancer_arithmetic_in_c_matches_vectors() {
    Decider::native().into_iter().for_each(compare);
}

#[test]
fn balancer_arithmetic_in_kernel_matches_vectors() {
    Decider::in_kernel().into_iter().for_each(compare);
}

fn compare(mut decider: Decider) {
    let all = vectors("arith.json");
    // The input fields of each list, and the offset of its results in the output.
    let lists = [
        ("mix_and_log", ["x", "", ""], "mix64", 0..1),
        ("generator", ["", "seed", ""], "next", 4..7),
        ("below", ["", "seed", "bound"], "below", 1..4),
    ];
    for (list, fields, result, at) in lists {
        let cases = all[list].as_array().unwrap();
        let input = |case: &Value| {
            let words = fields.map(|field| if field.is_empty() { 0 } else { number(&case[field]) });
            words.map(u64::to_ne_bytes).concat()
        };
        let outputs = decider.decide("arith", &cases.iter().map(input).collect::<Vec<_>>(), OUTPUT_BYTES);
        assert!(!cases.is_empty());
        for (case, output) in cases.iter().zip(outputs) {
            let words = output.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
            let decided = words.collect::<Vec<_>>()[at.clone()].to_vec();
            let expected = match &case[result] {
                Value::Array(results) => results.iter().map(number).collect(),
                one => vec![number(one)],
            };
            assert_eq!(decided, expected, "{list}: {case}");
        }
    }
}
