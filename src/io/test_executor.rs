//! An executor for tests of what runs on the node's executors.

use std::time::Duration;

/// Runs `body` on an executor of this thread, with a heartbeat as every executor of the node has: without one, glommio can
/// park beside a task that could run, and the test hangs.
pub fn on_executor<T>(body: impl Future<Output = T>) -> T {
    glommio::LocalExecutor::default().run(async {
        let heartbeat = glommio::spawn_local(async {
            loop {
                glommio::timer::sleep(Duration::from_millis(100)).await;
            }
        });
        let out = body.await;
        heartbeat.cancel().await;
        out
    })
}
