//! Which callers the patterns of rules match, and how authorization documents are parsed.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use fairmesh_model::{CallerId, CallerMatch};

#[test]
fn authorization_callers_match_by_name_prefix_and_full_id() {
    let caller = CallerId::new("spiffe://prod/shop/cart".parse().unwrap());
    assert_eq!(caller.path(), "shop/cart");
    for (text, matches) in [
        ("shop/cart", true),
        ("shop/*", true),
        ("shop/ca*", true),
        ("*", true),
        ("spiffe://prod/shop/cart", true),
        ("spiffe://prod/*", true),
        ("spiffe://other/shop/cart", false),
        ("shop/car", false),
        ("shopping/*", false),
        ("fairmesh/agent/*", false),
    ] {
        assert_eq!(CallerMatch::new(text).unwrap().matches(&caller), matches, "{text}");
    }
    let of_partner = CallerId::federated("spiffe://partner/shop/cart".parse().unwrap());
    for (text, matches) in [
        ("spiffe://partner/shop/cart", true),
        ("spiffe://prod/shop/cart", false),
        ("spiffe://partner/*", false),
        ("shop/cart", false),
        ("shop/*", false),
        ("*", false),
    ] {
        assert_eq!(CallerMatch::new(text).unwrap().matches(&of_partner), matches, "{text}");
    }
    for (text, denied) in [
        ("spiffe://partner/shop/cart", true),
        ("spiffe://partner/*", true),
        ("*", true),
        ("spiffe://prod/*", false),
        ("shop/cart", false),
        ("shop/*", false),
    ] {
        assert_eq!(CallerMatch::new(text).unwrap().matches_denied(&of_partner), denied, "{text}");
    }
    assert_eq!(CallerMatch::new("spiffe://prod/*").unwrap().whole_id(), None);
    assert_eq!(CallerMatch::new("shop/cart").unwrap().whole_id(), None);
    for wrong in ["", "cart", "sh*", "shop/*/x", "shop/**", "spiffe://prod", "*/cart", "Shop/cart"] {
        assert!(CallerMatch::new(wrong).is_err(), "{wrong}");
    }
}
