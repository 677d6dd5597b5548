use super::*;

const CALLERS: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn tracer(one_in: u64) -> Tracer {
    let to = "http://127.0.0.1:9".parse().unwrap();
    let sampler = Sampler { follows_parent: true, roots: RootSampler::OneIn(one_in) };
    let (resource, service) = (Vec::new(), None);
    Tracer::start(
        &TraceConfig { to, sampler, resource, service, instance: "test".into() },
        Transport::default(),
    )
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect::<HeaderMap>()
}

#[tokio::test]
async fn sampled_trace_continues_with_proxy_span_as_parent() {
    let tracer = tracer(0);
    let mut headers_in = headers(&[("traceparent", CALLERS), ("tracestate", "vendor=1")]);
    let begun = tracer.begin(&mut headers_in, false).unwrap();
    let passed_on = SpanContext::read(&headers_in).unwrap();
    assert_eq!((begun.parent, &*begun.state), (0x00f0_67aa_0ba9_02b7, "vendor=1"));
    assert_eq!(passed_on, begun.own);
    assert_eq!((passed_on.trace, passed_on.sampled), (0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, true));
    assert!(passed_on.span != begun.parent && headers_in["tracestate"] == "vendor=1");
}

#[tokio::test]
async fn unsampled_requests_keep_their_trace_headers() {
    let (never, always) = (tracer(0), tracer(1));
    let unrecorded = CALLERS.replace("-01", "-00");
    for (tracer, pairs) in [
        (&never, &[][..]),
        (&never, &[("traceparent", "garbage"), ("tracestate", "a=b")]),
        (&always, &[("traceparent", &*unrecorded), ("tracestate", "a=b")]),
        (&always, &[("b3", "80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-1")]),
        (&always, &[("x-b3-traceid", "80f198ee56343ba8"), ("x-b3-spanid", "e457b5a2e4d86bd1")]),
    ] {
        let mut headers_in = headers(pairs);
        assert!(tracer.begin(&mut headers_in, false).is_none());
        assert_eq!(headers_in, headers(pairs));
    }
}

#[tokio::test]
async fn outside_client_chooses_trace_id_but_not_sampling() {
    for context in [CALLERS.to_owned(), CALLERS.replace("-01", "-00")] {
        for (one_in, is_exported) in [(1, true), (0, false)] {
            let mut headers_in = headers(&[("traceparent", &*context)]);
            let begun = tracer(one_in).begin(&mut headers_in, true);
            let passed_on = SpanContext::read(&headers_in).unwrap();
            assert_eq!((begun.is_some(), passed_on.sampled), (is_exported, is_exported), "{context}");
            assert_eq!(passed_on.trace, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
            assert_eq!(begun.map(|span| span.parent), is_exported.then_some(0x00f0_67aa_0ba9_02b7));
        }
    }
    let mut half = tracer(0);
    half.sampler = Sampler { follows_parent: true, roots: RootSampler::share(0.5) };
    let of_low_id = CALLERS.replace("a3ce929d0e0e4736", "0000000000000000");
    let exported = |_: &i32| half.begin(&mut headers(&[("traceparent", &*of_low_id)]), true).is_some();
    let exported = (0..400).filter(exported).count();
    assert!((100..300).contains(&exported), "{exported} of 400, each by a random number");
    let mut headers_in = headers(&[("b3", "0"), ("X_B3_Sampled", "0"), ("traceparent", CALLERS)]);
    take_decision(&mut headers_in, false);
    assert_eq!(headers_in, headers(&[("traceparent", &CALLERS.replace("-01", "-00"))]));
}

#[tokio::test]
async fn requests_without_valid_context_start_traces() {
    let tracer = tracer(2);
    let mut seen = std::collections::HashSet::new();
    for number in 0..100 {
        let mut headers_in = headers(&[("traceparent", "00-xyz-1-01"), ("tracestate", "vendor=1")]);
        let begun = tracer.begin(&mut headers_in, false);
        assert_eq!(begun.is_some(), number % 2 == 0, "one in two");
        let Some(begun) = begun else {
            let decided = SpanContext::read(&headers_in).unwrap();
            assert!(!decided.sampled && !headers_in.contains_key("tracestate"), "the decision is carried on");
            continue;
        };
        assert_eq!((begun.parent, SpanContext::read(&headers_in)), (0, Some(begun.own)));
        assert!(!headers_in.contains_key("tracestate"), "it belonged to an invalid context");
        assert!(seen.insert(begun.own.trace) && seen.insert(begun.own.span.into()));
    }
}

#[tokio::test]
async fn sampler_without_parent_decides_by_trace_id() {
    let (mut all, mut none) = (tracer(0), tracer(0));
    all.sampler = Sampler { follows_parent: false, roots: RootSampler::share(1.0) };
    none.sampler = Sampler { follows_parent: false, roots: RootSampler::share(0.0) };
    let unrecorded = CALLERS.replace("-01", "-00");
    let begun = all.begin(&mut headers(&[("traceparent", &unrecorded)]), false).unwrap();
    assert!(
        begun.own.sampled
            && begun.own.trace == SpanContext::read(&headers(&[("traceparent", CALLERS)])).unwrap().trace
    );
    assert!(none.begin(&mut headers(&[("traceparent", CALLERS)]), false).is_none());
    assert!(all.begin(&mut headers(&[]), false).is_some() && none.begin(&mut headers(&[]), false).is_none());
}

#[test]
fn trace_resource_names_service_of_inbound_proxy() {
    let config = |service: Option<&str>, resource: &[(&str, &str)]| TraceConfig {
        to: "http://127.0.0.1:9".parse().unwrap(),
        sampler: Sampler { follows_parent: true, roots: RootSampler::OneIn(0) },
        resource: resource.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        service: service.map(|service| ServiceName::new(service).unwrap()),
        instance: "cart-1".into(),
    };
    let named = |config: &TraceConfig| {
        let texts = resource(config).into_iter().filter_map(|(key, value)| match value {
            AttributeValue::Text(text) => Some((key, text)),
            AttributeValue::Number(_) => None,
        });
        texts.collect::<std::collections::BTreeMap<_, _>>()
    };
    let cart = named(&config(Some("shop/cart"), &[]));
    assert_eq!((&*cart["service.name"], &*cart["service.instance.id"]), ("shop/cart", "cart-1"));
    assert!(!cart.contains_key("service.version"), "that of the program is not known");
    let given = named(&config(Some("shop/cart"), &[("service.name", "edge"), ("service.version", "7")]));
    assert_eq!((&*given["service.name"], &*given["service.version"]), ("edge", "7"));
    assert_eq!(named(&config(None, &[]))["service.name"], "fairmesh-proxy");
}

#[test]
fn span_attributes_split_authority_into_host_and_port() {
    assert_eq!(host_and_port("cart.shop:80"), (Some("cart.shop"), Some(80)));
    assert_eq!(host_and_port("cart.shop"), (Some("cart.shop"), None));
    assert_eq!(host_and_port("[::1]"), (Some("[::1]"), None));
    assert_eq!(host_and_port("[::1]:80"), (Some("[::1]"), Some(80)));
}

#[test]
fn spans_record_unknown_http_methods_as_other() {
    assert_eq!(method(&Method::from_bytes(b"MADEUP").unwrap()), "HTTP");
    let attributes = method_attributes(&Method::from_bytes(b"MADEUP").unwrap());
    assert_eq!(attributes[0], ("http.request.method", "_OTHER".into()));
    assert_eq!(method_attributes(&Method::PUT), [("http.request.method", "PUT".into())]);
}
