use std::{sync::atomic::Ordering, time::Duration};

use fairmesh_model::{Location, Region};
use fairmesh_wire::{transport::Address, v1::endpoint::State};
use tokio::time::timeout;

use super::control::{BOUND, Facts, Told, somewhere};
use crate::{Server, ServerBuilder, Standing};

fn builder(control: &Address) -> ServerBuilder {
    // The shortest lease there is, so that renewals come every third of a second.
    Server::builder("shop/cart")
        .instance("cart-0")
        .address(somewhere())
        .lease(Duration::from_secs(1))
        .agent(control.clone())
}

fn registered(state: State) -> Told {
    Told::Register { state, region: "eu".into() }
}

#[tokio::test]
async fn it_registers_where_the_agent_says_it_is_and_renews() {
    let control = Facts::new(Some("eu")).serve(None).await;
    let server = builder(&control.address).start().await.unwrap();
    control.facts.until(|told| told.iter().filter(|told| **told == Told::Renew).count() >= 2).await;
    assert_eq!(control.facts.told()[0], registered(State::Serving));
    drop(server);
}

#[tokio::test]
async fn a_process_speaks_for_itself_only_and_later_ones_come_after_it() {
    let control = Facts::new(Some("eu")).serve(None).await;
    let server = builder(&control.address).starting().start().await.unwrap();
    server.ready();
    control.facts.until(|told| told.contains(&Told::Report(State::Serving))).await;
    control.facts.until(|told| told.contains(&Told::Renew)).await;
    server.shutdown().await;
    control.facts.until(|told| told.contains(&Told::Deregister)).await;
    let first = std::mem::take(&mut *control.facts.spoke.lock().unwrap());
    assert_eq!(first.len(), 1, "{first:?}");
    assert!(first.iter().all(|incarnation| *incarnation > 0));

    let _successor = builder(&control.address).start().await.unwrap();
    let second = control.facts.spoke.lock().unwrap().clone();
    assert!(second.first() > first.first(), "{second:?} after {first:?}");
}

#[tokio::test]
async fn it_takes_no_calls_before_it_is_ready() {
    let control = Facts::new(Some("eu")).serve(None).await;
    let server = builder(&control.address).starting().start().await.unwrap();
    server.ready();
    control.facts.until(|told| told.contains(&Told::Report(State::Serving))).await;
    assert_eq!(control.facts.told()[0], registered(State::Starting));
}

#[tokio::test]
async fn whoever_was_forgotten_registers_anew() {
    let control = Facts::new(Some("eu")).serve(None).await;
    let _server = builder(&control.address).start().await.unwrap();
    control.facts.forgets.store(true, Ordering::Relaxed);
    control.facts.until(|told| told.ends_with(&[Told::Renew, registered(State::Serving)])).await;
}

#[tokio::test]
async fn a_control_plane_that_comes_late_is_found() {
    let control = Facts::new(Some("eu")).serve(None).await;
    let address = control.address.clone();
    let facts = control.stop().await;
    let server = builder(&address).start().await.unwrap();
    assert!(matches!(&*server.standing().borrow(), Standing::Failing(why) if why.contains("cannot reach")));
    let _control = facts.serve(Some(&address)).await;
    let mut standing = server.standing();
    timeout(BOUND, standing.wait_for(|now| matches!(now, Standing::Registered(_)))).await.unwrap().unwrap();
}

#[tokio::test]
async fn without_a_region_the_reason_is_said() {
    let control = Facts::new(None).serve(None).await;
    let server = builder(&control.address).start().await.unwrap();
    assert!(
        matches!(&*server.standing().borrow(), Standing::Failing(why) if why.contains("FAIRMESH_REGION"))
    );
}

#[tokio::test]
async fn what_cannot_be_called_is_refused_at_once() {
    let wildcard = Server::builder("shop/cart").address(([0, 0, 0, 0], 8080).into()).start().await;
    assert!(wildcard.unwrap_err().to_string().contains("every address"));
    assert!(Server::builder("shop/cart").start().await.unwrap_err().to_string().contains(".address("));
    assert!(Server::builder("cart").address(somewhere()).start().await.is_err());
}

#[tokio::test]
async fn once_it_drains_it_never_serves_again() {
    let control = Facts::new(Some("eu")).serve(None).await;
    control.facts.callers_moved.send_replace(false);
    let server = builder(&control.address).starting().start().await.unwrap();
    server.drain_on(std::future::ready(()));
    control.facts.until(|told| told.contains(&Told::Drain)).await;
    server.ready();
    control.facts.until(|told| told.ends_with(&[Told::Renew])).await;
    assert!(!control.facts.told().contains(&Told::Report(State::Serving)));
}

#[tokio::test]
async fn a_program_that_knows_only_a_control_plane_must_say_where_it_is() {
    let control = Facts::new(None).serve(None).await;
    let told = |location: Option<Location>| {
        let server = Server::builder("shop/cart").address(somewhere()).control(control.address.clone());
        match location {
            Some(location) => server.location(location),
            None => server,
        }
    };
    let refused = told(None).start().await.unwrap_err().to_string();
    assert!(refused.contains(".location(..)") && refused.contains("FAIRMESH_REGION"), "{refused}");
    assert!(control.facts.told().is_empty(), "{:?}", control.facts.told());
    let region = Region::new("eu").unwrap();
    let _server = told(Some(Location::in_region(region))).start().await.unwrap();
    assert_eq!(control.facts.told()[0], registered(State::Serving));
}
