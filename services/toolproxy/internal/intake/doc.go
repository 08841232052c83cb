// Package intake is toolproxy's side of taking in durable tasks: whether that is possible, and the life of a reservation.
//
//	Reserve ─▶ Reservation ─┬─ renewed every 5 s while the remote submit runs (Keep)
//	                        ├─ Commit ──▶ task
//	                        └─ Abandon ─▶ nothing, or a failed task whose outcome is unknown
//
// A reservation that nobody ends expires at the database's now + 15 s and becomes a failed task. This side counts those
// 15 s from before the request that was answered, by its own clock, so that it gives up first whatever the clocks say.
//
// A [Client] asks in the background whether durable tasks run, and learns it from every answer besides, so that nobody
// else has to ask.
package intake
