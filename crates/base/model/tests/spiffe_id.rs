//! SPIFFE IDs as text.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use fairmesh_model::SpiffeId;

#[test]
fn every_spiffe_id_parses_as_displayed() {
    for text in [
        "spiffe://example.org/shop/cart",
        "spiffe://prod/fairmesh/agent/web-1",
        "spiffe://prod/fairmesh/control/a.b",
        "spiffe://prod/fairmesh/operator/alice",
        "spiffe://prod/fairmesh/keyserver/web-1.keyserver",
        "spiffe://prod/fairmesh/gateway/edge-1.gateway",
    ] {
        assert_eq!(text.parse::<SpiffeId>().unwrap().to_string(), text);
    }
}

#[test]
fn other_spellings_and_reserved_names_are_rejected_as_spiffe_ids() {
    for text in [
        "",
        "spiffe://",
        "spiffe://prod",
        "spiffe://prod/",
        "spiffe://prod/cart",
        "spiffe://prod/shop/cart/",
        "spiffe://prod//shop/cart",
        "spiffe://prod/fairmesh/cart",
        "spiffe://prod/fairmesh/root/x",
        "spiffe://prod/shop/agent/x",
        "spiffe://prod/shop/../cart",
        "spiffe://prod:80/shop/cart",
        "spiffe://user@prod/shop/cart",
        "spiffe://Prod/shop/cart",
        "SPIFFE://prod/shop/cart",
        "spiffe://prod/shop/cart?x",
        "spiffe://prod/shop/ca%72t",
        "https://prod/shop/cart",
    ] {
        assert!(text.parse::<SpiffeId>().is_err(), "{text}");
    }
}
