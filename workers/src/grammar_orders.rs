//! Queue of orders for the thread that compiles grammars. Waiting allocates nothing, in contrast to
//! a channel of the standard library, whose first blocking wait allocates.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use grammar::EncodedGrammar;

/// Order for the thread that compiles grammars.
#[derive(Debug)]
pub(crate) enum GrammarOrder {
    Compile { number: u32, grammar: EncodedGrammar },
    Forget { number: u32 },
}

#[derive(Debug, Default)]
struct OrderQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    orders: VecDeque<GrammarOrder>,
    is_closed: bool,
}

impl OrderQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// End of the queue that adds orders, and closes the queue when dropped.
#[derive(Debug)]
pub(crate) struct GrammarOrderSender(Arc<OrderQueue>);

/// End of the queue that takes orders.
#[derive(Debug)]
pub(crate) struct GrammarOrderReceiver(Arc<OrderQueue>);

/// Returns both ends of an empty queue.
pub(crate) fn grammar_orders() -> (GrammarOrderSender, GrammarOrderReceiver) {
    let queue = Arc::<OrderQueue>::default();
    (GrammarOrderSender(Arc::clone(&queue)), GrammarOrderReceiver(queue))
}

impl GrammarOrderSender {
    pub(crate) fn send(&self, order: GrammarOrder) {
        self.0.lock().orders.push_back(order);
        self.0.changed.notify_one();
    }
}

impl Drop for GrammarOrderSender {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_one();
    }
}

impl GrammarOrderReceiver {
    /// Waits for the next order; returns `None` once the queue is closed and empty.
    pub(crate) fn receive(&self) -> Option<GrammarOrder> {
        let is_waiting = |state: &mut QueueState| state.orders.is_empty() && !state.is_closed;
        let guard = self.0.changed.wait_while(self.0.lock(), is_waiting);
        guard.unwrap_or_else(PoisonError::into_inner).orders.pop_front()
    }
}
