use fairmesh_model::{ServiceName, ShardKey, spec::Document as Spec};

use super::*;

const GOOD: &str = "\
# The shop.
kind: Service
name: shop/cart
type: sharded
protocol: grpc
---
service: shop/cart
routes:
  - name: read
    match: {path: {prefix: /v1}, methods: [GET]}
    split:
      - {service: shop/cart, weight: 90}
      - {service: shop/cart-next, weight: 10}
    idempotent: true
locality:
  rings: [5ms, 35ms, any]
kind: Policy
---
kind: ShardMap
service: shop/cart
interval: {start: 0, end: max}
shards:
  - id: 0
    start: 0
    replicas: [{instance: cart-0, region: eu, role: primary}]
  - {id: 1, start: 0xff}
  - {id: 2, start: '340282366920938463463374607431768211455'}
---
kind: Topology
regions:
  - {name: eu, neighbours: [no]}
  - {name: no}
roundTrips:
  - {between: [eu, no], rtt: 35ms}
---
kind: Endpoints
service: shop/cart
endpoints:
  - {instance: 7, address: '10.0.0.7:80', region: eu}
";

#[test]
fn manifest_with_every_kind_is_parsed() {
    let documents = parse("shop.yaml", GOOD).unwrap();
    let kinds: Vec<_> = documents.iter().map(|d| (d.spec.kind(), d.line)).collect();
    assert_eq!(kinds, [("Service", 2), ("Policy", 7), ("ShardMap", 19), ("Topology", 29), ("Endpoints", 36)]);
    let Resource::ShardMap(service, map) = &documents[2].resource else {
        panic!("{:?}", documents[2].resource)
    };
    assert_eq!(*service, ServiceName::new("shop/cart").unwrap());
    assert_eq!(map.shards[1].start, ShardKey(255));
    assert_eq!(map.shards[2].start, ShardKey::MAX);
}

#[test]
fn all_errors_of_manifest_are_found_with_positions() {
    let text = "kind: Policy\nservice: shop/a\ntimout: 5s\nroutes:\n  - name: one\n    splt: []\n  - {name: two, \
        mtch: {}, timeout: 7}\n---\nkind: Service\nname: shop/b\ntyp: sharded\n";
    assert!(parse("shop.yaml", text).is_err());
    let found: Vec<_> =
        errors("shop.yaml", text).into_iter().map(|error| (error.line, error.message)).collect();
    let lines: Vec<_> = found.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [3, 6, 7, 7, 11], "{found:?}");
    assert!(found[3].1.contains("'7' is not a duration"), "{found:?}");
    assert!(errors("shop.yaml", GOOD).is_empty());
    let text = "kind: Policy\nservice: shop/a\nroutes: [{name: a, split: [{service: shop/a, weight: 9%}]}]\ntimeout: 5\n";
    let lines: Vec<_> = errors("shop.yaml", text).into_iter().map(|error| error.line).collect();
    assert_eq!(lines, [3, 4], "behind a required field");
    for shares in
        ["{shares: [{from: eu, to: {eu: 120%}}]}", "\n  shares:\n    - from: eu\n      to:\n        eu: 120%"]
    {
        let text = format!("kind: Policy\nservice: shop/a\ntraffic: {shares}\ntimeout: 5\n");
        let found: Vec<_> = errors("shop.yaml", &text).into_iter().map(|error| error.message).collect();
        assert_eq!(found.len(), 2, "a whole without what was left out is no error of its own: {found:?}");
        let of = |words: &str| found.iter().any(|message| message.contains(words));
        assert!(of("'120%' is not a share") && of("timeout: '5'"), "{found:?}");
    }
    for rings in [
        "[{within: region, load: 150%}, {within: 35ms, load: 80%}, {within: any, load: 170%}]",
        "\n    - within: region\n      load: 150%\n    - {within: 35ms, load: 80%}\n    - within: any\n      load: 170%",
    ] {
        let text = format!("kind: Policy\nservice: shop/a\ntraffic:\n  planner: rings\n  rings: {rings}\n");
        let found: Vec<_> = errors("shop.yaml", &text).into_iter().map(|error| error.message).collect();
        let expected = [
            "traffic.rings[0].load: '150%' is no threshold",
            "traffic.rings[2].load: '170%' is no threshold",
        ];
        assert_eq!(found, expected, "by their numbers in the file");
    }
    // A field that is missing only because its entry was overwritten is not a separate error.
    assert_eq!(errors("shop.yaml", "kind: Service\nname: 'a b'\n").len(), 1);
    assert_eq!(errors("shop.yaml", "kind: Service\nname: [\n").len(), 1, "no YAML");
}

#[test]
fn printed_manifest_documents_parse_again() {
    for document in parse("shop.yaml", GOOD).unwrap() {
        let printed = serde_saphyr::to_string(&Spec::from(&document.resource)).unwrap();
        let again = parse("printed", &printed).unwrap_or_else(|e| panic!("{e}\n{printed}"));
        assert_eq!(again[0].resource, document.resource, "{printed}");
        let json = serde_json::to_string(&document.spec).unwrap();
        assert_eq!(
            serde_json::from_str::<Spec>(&json).unwrap().validate().unwrap(),
            document.resource,
            "{json}"
        );
    }
}

/// Returns line, column and message of the error, and the text of its span.
fn refused(text: &str) -> (usize, usize, String, ManifestError) {
    let error = parse("shop.yaml", text).unwrap_err();
    assert!(!error.hint.is_empty(), "{error}");
    let span = text[error.offset..error.offset + error.length].to_owned();
    (error.line, error.column, span, error)
}

#[test]
fn unknown_field_error_has_position_and_nearest_name() {
    let (line, column, span, error) = refused("kind: Policy\nservice: shop/cart\ntimout: 15s\n");
    assert_eq!((line, column, span.as_str()), (3, 1, "timout"));
    assert_eq!(error.hint, "did you mean 'timeout'?");
    assert!(error.to_string().starts_with("shop.yaml:3:1: "), "{error}");

    let nested = "kind: Service\nname: shop/cart\n---\nkind: Policy\nservice: shop/cart\nroutes:\n  - name: a\n    mtach: {}\n";
    let (line, column, span, error) = refused(nested);
    assert_eq!((line, column, span.as_str(), error.hint.as_str()), (8, 5, "mtach", "did you mean 'match'?"));
}

#[test]
fn unknown_kind_or_choice_error_suggests_nearest() {
    let (line, column, span, error) = refused("name: shop/cart\nkind: Servise\n");
    assert_eq!(
        (line, column, span.as_str(), error.hint.as_str()),
        (2, 7, "Servise", "did you mean 'Service'?")
    );
    let (line, _, span, error) = refused("kind: Service\nname: shop/cart\nprotocol: gprc\n");
    assert_eq!((line, span.as_str(), error.hint.as_str()), (3, "gprc", "did you mean 'grpc'?"));
    let (line, _, _, error) = refused("\n\nname: shop/cart\n");
    assert_eq!(line, 3);
    assert!(error.hint.contains("kind: Service"), "{error}");
}

#[test]
fn wrong_manifest_value_error_has_position() {
    let cases = [
        ("kind: Service\nname: cart\n", 2, "cart"),
        ("kind: Service\n# ä\nname: Shop/cart\n", 3, "Shop/cart"),
        ("kind: Policy\nservice: shop/cart\nlocality:\n  rings: [35ms, 5ms]\n", 4, "5ms"),
        ("kind: Policy\nservice: shop/cart\nretries: {attempts: 11}\n", 3, "11"),
        (
            "kind: ShardMap\nservice: shop/cart\nshards:\n  - {id: 0, start: 0}\n  - {id: 1, start: 9}\n  - {id: 2, start: 5}\n",
            6,
            "5",
        ),
        ("kind: Topology\nregions:\n  - name: eu\n    neighbours: [mars]\n", 4, "["),
        (
            "kind: Endpoints\nservice: a/b\nendpoints:\n  - {instance: x, address: 'cart:80', region: eu}\n",
            4,
            "'cart:80'",
        ),
    ];
    for (text, expected_line, expected_span) in cases {
        let (line, _, span, error) = refused(text);
        assert_eq!((line, span.as_str()), (expected_line, expected_span), "{error}");
    }
}

#[test]
fn malformed_yaml_error_has_line() {
    let (line, ..) = refused("kind: Service\nname: shop/cart\n---\nkind: Service\nname: 'shop/cart\n");
    assert!(line >= 5, "{line}");
    let (line, ..) = refused("kind: Service\n  name: shop/cart\n");
    assert_eq!(line, 2);
    let (line, _, span, error) = refused("kind: Service\nname: shop/cart\nname: shop/other\n");
    assert_eq!((line, span.as_str()), (3, "name"), "{error}");
    let (.., error) = refused("kind: Service\nprotocol: grpc\n");
    assert!(error.message.contains("'name' is missing"), "{error}");
    assert!(refused("- kind: Service\n").3.line == 1);
}

#[test]
fn wrong_yaml_type_error_names_expected_type() {
    let cases = [
        ("kind: Policy\nservice: a/b\nroutes: {name: a}\n", "{", "'- '"),
        ("kind: Policy\nservice: a/b\nretries: 3\n", "3", "name: value"),
        ("kind: Policy\nservice: a/b\nretries: {attempts: many}\n", "many", "whole number"),
        ("kind: Policy\nservice: a/b\nlocality: {localOnly: maybe}\n", "maybe", "true or false"),
        ("kind: Service\nname:\n", "", "leave the field out"),
        ("kind: Service\nname: *cart\n", "*cart", "in quotes"),
        (
            "kind: ShardMap\nservice: a/b\nshards: [{id: 0, start: 340282366920938463463374607431768211455}]\n",
            "3402",
            "in quotes",
        ),
        ("kind: Topology\nregions: []\nroundTrips: [{between: [eu], rtt: 5ms}]\n", "between", "length 2"),
    ];
    for (text, expected_span, hint) in cases {
        let (_, _, span, error) = refused(text);
        assert!(error.hint.contains(hint), "{error}");
        assert!(span.starts_with(expected_span), "{error}: {span}");
    }
}
