//! Tests with a store that does not answer, emulated by a thread that waits for a message.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;

use prompt_cache::PageHash;
use protocol::messages::{StoredMemory, StoredPage};

use super::*;

fn orders(silence_max: Duration) -> Arc<PageTransferQueue> {
    let orders = PageTransferQueue::new().expect("a descriptor");
    Arc::new(PageTransferQueue {
        read_silence_max: silence_max,
        write_silence_max: silence_max,
        ..orders
    })
}

fn page() -> StoredPage {
    let name: PageHash = "07".repeat(32).parse().expect("a name");
    StoredPage { memory: StoredMemory::Page(0), name, previous: name, index: 0, tokens: Vec::new() }
}

fn fetch(number: u32) -> ToWorker {
    ToWorker::FetchPages { number, batch: 0, pages: vec![page(), page()] }
}

fn store(number: u32) -> ToWorker {
    ToWorker::StorePage { number, batch: 0, page: page() }
}

/// Returns the number, the pages and true if the answer reports a refusal.
fn summary(answer: &FromWorker) -> (u32, u32, bool) {
    match answer {
        FromWorker::PagesFetched { number, pages, refused, is_silent, .. } => {
            assert_eq!(refused.is_some(), *is_silent);
            (*number, *pages, refused.is_some())
        }
        FromWorker::PageStored { number, failure, .. } => (*number, 0, failure.is_some()),
        other => panic!("{other:?}"),
    }
}

fn summaries(orders: &PageTransferQueue) -> Vec<(u32, u32, bool)> {
    let mut all: Vec<_> = orders.take_answers().iter().map(summary).collect();
    all.sort_unstable();
    all
}

#[test]
fn orders_of_a_store_that_does_not_answer_are_answered_and_its_late_bytes_refused() {
    let orders = orders(Duration::from_millis(20));
    let directory = Path::new("/mnt/prompts");
    let (answer, drive) = channel::<()>();
    let (hangs, hanging) = channel();
    let carrier = {
        let orders = Arc::clone(&orders);
        std::thread::spawn(move || {
            let ToWorker::FetchPages { number, .. } = orders.next() else { panic!("to fetch") };
            orders.copy(|| {}).expect("it is current");
            let (pages, bytes) = orders.page_done(100);
            hangs.send(()).expect("heard");
            drive.recv().expect("an answer");
            let late = orders.copy(|| panic!("the page is another's"));
            let (refused, is_silent) = (None, false);
            orders.finish(FromWorker::PagesFetched { number, pages, bytes, refused, is_silent });
            let ToWorker::StorePage { number, .. } = orders.next() else { panic!("to store") };
            orders.finish(FromWorker::PageStored { number, bytes: 7, failure: None });
            late
        })
    };
    orders.push(fetch(1));
    hanging.recv().expect("it hangs");
    orders.push(store(2));
    orders.push(fetch(3));
    orders.expire(directory);
    assert_eq!(summaries(&orders), [], "it may answer yet");
    std::thread::sleep(Duration::from_millis(30));
    orders.expire(directory);
    assert_eq!(summaries(&orders), [(1, 1, true), (2, 0, true), (3, 0, true)]);
    orders.push(fetch(4));
    orders.expire(directory);
    assert_eq!(summaries(&orders), [(4, 0, true)], "known to be silent");
    orders.push(store(5));
    answer.send(()).expect("it waits");
    assert_eq!(carrier.join().expect("no panic"), Err(MemoryWithdrawn));
    assert_eq!(summaries(&orders), [(5, 0, false)], "the first is answered once");
}

#[test]
fn what_nobody_waits_for_is_given_up() {
    let orders = orders(Duration::from_secs(600));
    for order in [store(1), fetch(2), store(3), fetch(4)] {
        orders.push(order);
    }
    assert!(
        matches!(orders.next(), ToWorker::FetchPages { number: 2, .. }),
        "before those to store"
    );
    orders.cancel_fetch(4);
    orders.cancel_fetch(7);
    orders.cancel_fetch(1);
    assert_eq!(summaries(&orders), [(4, 0, false)], "only what is to be fetched");
    orders.page_done(10);
    orders.cancel_fetch(2);
    orders.cancel_fetch(2);
    assert_eq!(summaries(&orders), [(2, 1, false)]);
    assert_eq!(orders.copy(|| panic!("the page is another's")), Err(MemoryWithdrawn));
    let (refused, is_silent) = (None, false);
    orders.finish(FromWorker::PagesFetched { number: 2, pages: 2, bytes: 0, refused, is_silent });
    assert_eq!(summaries(&orders), []);
    assert!(matches!(orders.next(), ToWorker::StorePage { number: 1, .. }));
    assert!(orders.copy(|| {}).is_ok());
}
