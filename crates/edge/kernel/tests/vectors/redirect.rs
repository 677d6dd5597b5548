use std::net::Ipv4Addr;

use serde_json::{Value, json};

use crate::decider::{Decider, vectors};

/// `struct redirect_input` and `struct redirect_output` of `bpf/vectors/vectors.h`.
pub(crate) const INPUT_BYTES: usize = 2 * 8 + 8 * 4 + 2 * 4;
pub(crate) const OUTPUT_BYTES: usize = 4 * 4;

const NO_REPLICA: u32 = 255;

#[test]
fn redirects_in_c_match_vectors() {
    Decider::native().into_iter().for_each(compare);
}

#[test]
fn redirects_in_kernel_match_vectors() {
    Decider::in_kernel().into_iter().for_each(compare);
}

fn number(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap()).unwrap()
}

fn input((chain, unreachable): (u64, u64), words: [u32; 10]) -> Vec<u8> {
    let numbers = [chain, unreachable].into_iter().flat_map(u64::to_ne_bytes);
    numbers.chain(words.into_iter().flat_map(u32::to_ne_bytes)).collect()
}

fn walk(case: &Value) -> Vec<u8> {
    let chain: Vec<u8> = serde_json::from_value(case["chain"].clone()).unwrap();
    let unreachable = case["unreachable"].as_str().unwrap().trim_start_matches("0x");
    let mark = &case["mark"];
    let of_mark = |field: &str| if mark.is_null() { 0 } else { number(&mark[field]) };
    let holds = match case["holds"].as_str().unwrap() {
        "nothing" => 0,
        "ended" => 1,
        _ => 2,
    };
    let words = [
        if case["own"].is_null() { NO_REPLICA } else { number(&case["own"]) },
        number(&case["version"]),
        u32::from(!mark.is_null()),
        of_mark("version"),
        of_mark("hops"),
        u32::from(case["begins"].as_bool().unwrap()),
        u32::from(case["listens"].as_bool().unwrap()),
        holds,
        0,
        0,
    ];
    let chain = u64::from_le_bytes(chain.try_into().unwrap());
    input((chain, u64::from_str_radix(unreachable, 16).unwrap()), words)
}

fn client(case: &Value) -> Vec<u8> {
    let address: Ipv4Addr = case["address"].as_str().unwrap().parse().unwrap();
    let mut words = [0; 10];
    (words[8], words[9]) = (address.into(), number(&case["port"]));
    input((u64::MAX, 0), words)
}

fn compare(mut decider: Decider) {
    let all = vectors("redirects.json");
    let mut decided = |list: &str, encode: fn(&Value) -> Vec<u8>| {
        let cases = all[list].as_array().unwrap().clone();
        let inputs: Vec<_> = cases.iter().map(encode).collect();
        assert!(inputs.iter().all(|input| input.len() == INPUT_BYTES) && !inputs.is_empty());
        let outputs = decider.decide("redirect", &inputs, OUTPUT_BYTES).into_iter().map(|output| {
            let words = output.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
            words.collect::<Vec<u32>>()
        });
        cases.into_iter().zip(outputs).collect::<Vec<_>>()
    };
    for (case, output) in decided("buckets", client) {
        assert_eq!(output[0], number(&case["bucket"]), "{case}");
    }
    for (case, output) in decided("walks", walk) {
        let [verdict, next, hops] = [output[1], output[2], output[3]];
        let decided = match verdict {
            0 => json!("take"),
            1 => json!({ "next": next, "hops": hops }),
            _ => json!("discard"),
        };
        assert_eq!(decided, case["verdict"], "{case}");
    }
}
