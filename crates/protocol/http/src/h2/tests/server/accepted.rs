//! Every valid form of input is accepted.

use http::{Method, Version};
use http_body::Body as _;

use super::{
    super::super::frame::{PADDED, PRIORITY, PRIORITY_FLAG},
    *,
};

#[tokio::test(start_paused = true)]
async fn http2_connection_begins_with_settings_frame() {
    let mut client = Client::ahead(&[]);
    let [streams, window, fields] = [(3, 256), (INITIAL_WINDOW_SIZE, STREAM_WINDOW as u32), (6, 68 * 1024)];
    let settings = settings_frame(&[streams, window, fields]);
    client
        .expect([
            Event::Settings(settings[HEADER_LEN..].to_vec().into()),
            Event::WindowUpdate(0, CONNECTION_WINDOW as u32 - 65_535),
        ])
        .await;
    client.expect_nothing().await;
}

#[tokio::test(start_paused = true)]
async fn bytes_read_before_http2_connection_starts_are_parsed() {
    let mut client = Client::ahead(&[settings_frame(&[]), get(1, "/early")].concat());
    assert_eq!(client.dispatched().await.request.uri(), "http://one.shop/early");
}

#[tokio::test(start_paused = true)]
async fn http2_frame_split_at_any_byte_is_parsed() {
    let mut client = Client::new().await;
    for byte in [post(1, &[]), raw_frame(DATA, END_STREAM, 1, "body")].concat() {
        client.send(&[byte]).await;
        tokio::task::yield_now().await;
    }
    let body = client.dispatched().await.request.into_body();
    assert_eq!(in_time(body.collect()).await.unwrap().to_bytes(), "body");
}

#[tokio::test(start_paused = true)]
async fn request_in_padded_and_continued_headers_frames_is_dispatched() {
    let mut client = Client::new().await;
    let fields = [&GET[..], &[("te", "trailers"), ("cookie", "a=b"), ("cookie", "c=d")]].concat();
    let header_block = header_block(&fields);
    let first = [&[2, 0, 0, 0, 7, 16], &header_block[..10], &[0, 0]].concat();
    let dispatched = client
        .request(
            &[
                raw_frame(PRIORITY, 0, 9, [0, 0, 0, 3, 1]),
                raw_frame(HEADERS, PADDED | PRIORITY_FLAG | END_STREAM, 1, first),
                raw_frame(CONTINUATION, 0, 1, []),
                raw_frame(CONTINUATION, END_HEADERS, 1, &header_block[10..]),
            ]
            .concat(),
        )
        .await;
    let request = dispatched.request;
    assert_eq!((request.method(), request.version()), (&Method::GET, Version::HTTP_2));
    assert_eq!(request.uri(), "http://one.shop/");
    let expected = headers(&[("te", "trailers"), ("cookie", "a=b"), ("cookie", "c=d")]);
    assert_eq!(request.headers(), &expected);
    assert!(request.body().is_end_stream());
}

#[tokio::test(start_paused = true)]
async fn empty_data_frame_differs_from_end_stream_in_headers() {
    let mut client = Client::new().await;
    let empty = |stream| raw_frame(DATA, END_STREAM, stream, "");
    let together = client.request(&[post(1, &[]), empty(1)].concat()).await;
    let apart = client.request(&post(3, &[])).await;
    client.send(&[empty(3), raw_frame(PING, 0, 0, [7; 8])].concat()).await;
    client.expect([Event::Pong(vec![7; 8].into())]).await;
    let mut held = Vec::new();
    for Dispatched { request, response } in [together, apart] {
        let mut body = request.into_body();
        assert!(!body.is_end_stream() && body.size_hint().exact() == Some(0));
        assert!(in_time(body.frame()).await.is_none() && body.is_end_stream());
        held.push(response);
    }
}

#[tokio::test(start_paused = true)]
async fn padding_of_request_is_removed_and_trailers_are_kept() {
    let mut client = Client::new().await;
    let dispatched = client.request(&post(1, &[("content-length", "8")])).await;
    client
        .send(
            &[
                raw_frame(DATA, PADDED, 1, [&[3][..], b"some", &[0; 3]].concat()),
                raw_frame(DATA, 0, 1, ""),
                raw_frame(DATA, PADDED, 1, [&[0][..], b"body"].concat()),
                raw_frame(HEADERS, END_HEADERS | END_STREAM, 1, header_block(&[("x-sum", "7")])),
            ]
            .concat(),
        )
        .await;
    let collected = in_time(dispatched.request.into_body().collect()).await.unwrap();
    assert_eq!(collected.trailers(), Some(&headers(&[("x-sum", "7")])));
    assert_eq!(collected.to_bytes(), "somebody");
}

#[tokio::test(start_paused = true)]
async fn unknown_http2_frames_and_settings_are_ignored() {
    let mut client = Client::new().await;
    client
        .send(
            &[
                raw_frame(0xfa, 0xff, 0, [1; 100]),
                raw_frame(0xfa, 0xff, 77, []),
                raw_frame(PING, ACK, 0, [1; 8]),
                raw_frame(SETTINGS, ACK, 0, []),
            ]
            .concat(),
        )
        .await;
    client.send(&settings_frame(&[(0xf000, 7)])).await;
    client.expect([Event::SettingsAck]).await;
    client.expect_alive(1).await;
}
