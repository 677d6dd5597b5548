//! Every target on what was kept of its corpus, and on some mutations of that, the same on every run.
#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{collections::BTreeSet, fs, panic, path::PathBuf};

use fairmesh_fuzz::{TARGETS, mutation::mutate};
use fairmesh_model::arith::{Generator, hash_text};

/// Mutations of each target.
const MUTATIONS: u64 = 1000;

fn folder(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "corpus", name].iter().collect()
}

/// Inputs by name, in their order.
fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(folder(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| (file.display().to_string(), fs::read(file).unwrap())).collect()
}

fn replay(name: &str) {
    let (_, target) = TARGETS.into_iter().find(|(own, _)| *own == name).unwrap();
    let corpus = corpus(name);
    let holds = |input: &[u8], what: &str| {
        let held = panic::catch_unwind(|| target(input)).is_ok();
        assert!(held, "{what} breaks it: {}", input.escape_ascii());
    };
    corpus.iter().for_each(|(file, input)| holds(input, file));
    let mut dice = Generator::new(hash_text(name));
    for _ in 0..MUTATIONS {
        let [(file, input), (_, other)] = [(); 2].map(|()| &corpus[dice.below(corpus.len() as u64) as usize]);
        holds(&mutate(&mut dice, input, other), &format!("a mutation of {file}"));
    }
}

macro_rules! replays {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name));
        })*

        const REPLAYED: &[&str] = &[$(stringify!($name)),*];
    };
}

replays! {
    dns_query headers hpack http1_response http1_call http1_plain http1_request http2_call identity kernel_head local_answer manifest protocol_detect proxy_protocol
    record_decode rib_key route_match serve_http1 serve_http2 shard_decode traceparent user_token watch
}

#[test]
fn every_fuzz_target_is_replayed_and_built_for_libfuzzer() {
    let targets: BTreeSet<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(targets, REPLAYED.iter().map(|name| (*name).to_owned()).collect());
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("libfuzzer/fuzz_targets");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(targets, files.map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned()).collect());
}
