//! A bounded ring with one producer and one consumer, each on a core of its own (or both on the same one).
//!
//! An element is usually a whole batch, so that a hop is paid once for many messages. Full: the producer gets its
//! element back and either refuses or waits ([`Sender::poll_ready`]). Empty: the consumer's waker is kept
//! ([`Receiver::poll_recv`]) and the next push calls it. Dropping an end closes the ring; what was pushed before can
//! still be taken out.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;

/// The other end of the ring is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// Keeps what the two cores write on cache lines of their own (two lines: the prefetcher fetches pairs).
#[repr(align(128))]
struct Apart<T>(T);

struct Shared<T> {
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    /// Elements ever taken; written by the consumer.
    head: Apart<AtomicUsize>,
    /// Elements ever pushed; written by the producer.
    tail: Apart<AtomicUsize>,
    consumer: Apart<Sleeper>,
    producer: Apart<Sleeper>,
    closed: AtomicBool,
}

/// One end that may be asleep. `asleep` is set before the last look at the ring and cleared by whoever wakes it, so a
/// push that the last look missed always sees it.
struct Sleeper {
    asleep: AtomicBool,
    waker: AtomicWaker,
}

impl Sleeper {
    fn new() -> Sleeper {
        Sleeper { asleep: AtomicBool::new(false), waker: AtomicWaker::new() }
    }

    fn prepare_to_sleep(&self, cx: &Context<'_>) {
        self.waker.register(cx.waker());
        self.asleep.store(true, Ordering::Relaxed);
        // Pairs with the fence in `wake`: either the other end sees `asleep`, or we see what it did before.
        fence(Ordering::SeqCst);
    }

    fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            self.waker.wake();
        }
    }
}

// SAFETY: a slot is touched by the producer only while it lies in [tail, head + capacity) and by the consumer only
// while it lies in [head, tail); both bounds are handed over with Release stores and Acquire loads.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above; elements move from one core to the other, so they must be Send.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    fn slot(&self, position: usize) -> *mut MaybeUninit<T> {
        self.slots[position & (self.slots.len() - 1)].get()
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let (head, tail) = (self.head.0.load(Ordering::Relaxed), self.tail.0.load(Ordering::Relaxed));
        let mut position = head;
        while position != tail {
            // SAFETY: both ends are gone, so [head, tail) holds initialised elements that nobody else can reach.
            unsafe { (*self.slot(position)).assume_init_drop() };
            position = position.wrapping_add(1);
        }
    }
}

/// The producing end. Lives on one core.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
    tail: usize,
    /// The last `head` seen; looked up again only when the ring seems full.
    head_seen: usize,
}

/// The consuming end. Lives on one core.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    head: usize,
    /// The last `tail` seen; looked up again only when the ring seems empty.
    tail_seen: usize,
}

/// A ring for at least `capacity` elements (rounded up to a power of two).
pub fn ring<T: Send>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let len = capacity.max(1).next_power_of_two();
    let shared = Arc::new(Shared {
        slots: (0..len).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
        head: Apart(AtomicUsize::new(0)),
        tail: Apart(AtomicUsize::new(0)),
        consumer: Apart(Sleeper::new()),
        producer: Apart(Sleeper::new()),
        closed: AtomicBool::new(false),
    });
    (Sender { shared: Arc::clone(&shared), tail: 0, head_seen: 0 }, Receiver { shared, head: 0, tail_seen: 0 })
}

/// Looks at a ring from any thread.
pub struct RingDepth(Box<dyn Fn() -> usize + Send + Sync>);

impl RingDepth {
    /// Elements pushed and not yet taken, about now.
    pub fn get(&self) -> usize {
        (self.0)()
    }
}

impl<T: Send + 'static> Sender<T> {
    /// For somebody else to see how full the ring is. Keeps the ring's memory as long as it lives.
    pub fn watch(&self) -> RingDepth {
        let shared = Arc::clone(&self.shared);
        RingDepth(Box::new(move || {
            // In this order: the head never passes the tail.
            let head = shared.head.0.load(Ordering::Acquire);
            shared.tail.0.load(Ordering::Acquire).wrapping_sub(head)
        }))
    }
}

impl<T: Send> Sender<T> {
    /// Pushes `element` and wakes a sleeping consumer; a full or closed ring gives it back.
    ///
    /// # Errors
    /// The element itself.
    pub fn push(&mut self, element: T) -> Result<(), T> {
        if !self.has_room() || self.is_closed() {
            return Err(element);
        }
        // SAFETY: `has_room` says that the slot at `tail` was taken out, and only this end writes slots.
        unsafe { (*self.shared.slot(self.tail)).write(element) };
        self.tail = self.tail.wrapping_add(1);
        self.shared.tail.0.store(self.tail, Ordering::Release);
        self.shared.consumer.0.wake();
        Ok(())
    }

    /// Ready when a push will fit, or when the consumer is gone.
    pub fn poll_ready(&mut self, cx: &Context<'_>) -> Poll<Result<(), Closed>> {
        for last_look in [false, true] {
            if self.is_closed() {
                return Poll::Ready(Err(Closed));
            }
            if self.has_room() {
                return Poll::Ready(Ok(()));
            }
            if !last_look {
                self.shared.producer.0.prepare_to_sleep(cx);
            }
        }
        Poll::Pending
    }

    /// Elements pushed and not yet taken.
    pub fn depth(&self) -> usize {
        self.tail.wrapping_sub(self.shared.head.0.load(Ordering::Relaxed))
    }

    fn has_room(&mut self) -> bool {
        let capacity = self.shared.slots.len();
        if self.tail.wrapping_sub(self.head_seen) < capacity {
            return true;
        }
        self.head_seen = self.shared.head.0.load(Ordering::Acquire);
        self.tail.wrapping_sub(self.head_seen) < capacity
    }

    fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.consumer.0.wake();
    }
}

impl<T: Send> Receiver<T> {
    /// Takes the oldest element, if there is one.
    pub fn pop(&mut self) -> Option<T> {
        if self.head == self.tail_seen {
            self.tail_seen = self.shared.tail.0.load(Ordering::Acquire);
            if self.head == self.tail_seen {
                return None;
            }
        }
        // SAFETY: `head` lies before `tail`, so the producer has written this slot and will not touch it before `head`
        // moves past it.
        let element = unsafe { (*self.shared.slot(self.head)).assume_init_read() };
        self.head = self.head.wrapping_add(1);
        self.shared.head.0.store(self.head, Ordering::Release);
        self.shared.producer.0.wake();
        Some(element)
    }

    /// The oldest element once there is one; `Err(Closed)` when the producer is gone and all is taken.
    pub fn poll_recv(&mut self, cx: &Context<'_>) -> Poll<Result<T, Closed>> {
        for last_look in [false, true] {
            // Read before the pop: what was pushed before the close is still delivered.
            let closed = self.shared.closed.load(Ordering::Acquire);
            if let Some(element) = self.pop() {
                return Poll::Ready(Ok(element));
            }
            if closed {
                return Poll::Ready(Err(Closed));
            }
            if !last_look {
                self.shared.consumer.0.prepare_to_sleep(cx);
            }
        }
        Poll::Pending
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.producer.0.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;
    use std::task::{Wake, Waker};

    struct Count(AtomicU32);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn counting_waker() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count(AtomicU32::new(0)));
        (Arc::clone(&count), Waker::from(count))
    }

    #[test]
    fn elements_come_out_in_the_order_they_went_in_across_many_turns_of_the_ring() {
        let (mut tx, mut rx) = ring(4);
        for round in 0..100u32 {
            for i in 0..3 {
                tx.push(round * 3 + i).unwrap();
            }
            for i in 0..3 {
                assert_eq!(rx.pop(), Some(round * 3 + i));
            }
        }
        assert_eq!(rx.pop(), None);
    }

    #[test]
    fn its_depth_can_be_seen_from_elsewhere() {
        let (mut tx, mut rx) = ring(4);
        let depth = tx.watch();
        assert_eq!(depth.get(), 0);
        tx.push(1).unwrap();
        tx.push(2).unwrap();
        assert_eq!(depth.get(), 2);
        rx.pop();
        assert_eq!(depth.get(), 1);
        drop((tx, rx));
        assert_eq!(depth.get(), 1);
    }

    #[test]
    fn a_full_ring_gives_the_element_back_and_wakes_the_producer_when_one_is_taken() {
        let (mut tx, mut rx) = ring(2);
        let (count, waker) = counting_waker();
        let cx = Context::from_waker(&waker);
        tx.push(1).unwrap();
        tx.push(2).unwrap();
        assert_eq!(tx.push(3), Err(3));
        assert!(tx.poll_ready(&cx).is_pending());
        assert_eq!(rx.pop(), Some(1));
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert_eq!(tx.poll_ready(&cx), Poll::Ready(Ok(())));
    }

    #[test]
    fn only_a_sleeping_consumer_is_woken_and_only_once() {
        let (mut tx, mut rx) = ring(8);
        let (count, waker) = counting_waker();
        let cx = Context::from_waker(&waker);
        tx.push(1).unwrap();
        assert_eq!(rx.poll_recv(&cx), Poll::Ready(Ok(1)));
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
        assert!(rx.poll_recv(&cx).is_pending());
        tx.push(2).unwrap();
        tx.push(3).unwrap();
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_closed_ring_still_delivers_what_was_pushed() {
        let (mut tx, mut rx) = ring(8);
        let (_, waker) = counting_waker();
        let cx = Context::from_waker(&waker);
        tx.push(1).unwrap();
        drop(tx);
        assert_eq!(rx.poll_recv(&cx), Poll::Ready(Ok(1)));
        assert_eq!(rx.poll_recv(&cx), Poll::Ready(Err(Closed)));
        let (mut tx, rx) = ring(8);
        drop(rx);
        assert_eq!(tx.push(1), Err(1));
    }

    #[test]
    fn elements_left_in_the_ring_are_dropped_with_it() {
        let element = Arc::new(());
        let (mut tx, rx) = ring(8);
        tx.push(Arc::clone(&element)).unwrap();
        tx.push(Arc::clone(&element)).unwrap();
        drop((tx, rx));
        assert_eq!(Arc::strong_count(&element), 1);
    }

    #[test]
    fn two_threads_that_sleep_and_wake_each_other_lose_nothing() {
        struct Unpark(std::thread::Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        const COUNT: u64 = 200_000;
        let (mut tx, mut rx) = ring::<u64>(16);
        let consumer = std::thread::spawn(move || {
            let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
            let cx = Context::from_waker(&waker);
            let mut next = 0;
            loop {
                match rx.poll_recv(&cx) {
                    Poll::Ready(Ok(element)) => {
                        assert_eq!(element, next);
                        next += 1;
                    }
                    Poll::Ready(Err(Closed)) => break next,
                    Poll::Pending => std::thread::park(),
                }
            }
        });
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let cx = Context::from_waker(&waker);
        for element in 0..COUNT {
            while tx.poll_ready(&cx).is_pending() {
                std::thread::park();
            }
            tx.push(element).unwrap();
        }
        drop(tx);
        assert_eq!(consumer.join().unwrap(), COUNT);
    }
}
