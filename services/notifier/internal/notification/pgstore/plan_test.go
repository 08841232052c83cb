package pgstore_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/toolherd/toolherd/pkg/db/dbtest"
	"github.com/toolherd/toolherd/services/notifier/internal/notification/pgstore"
)

// crowd fills the tables: per sink, many deliveries that are done, some that wait, few that are due. The sink "stream"
// has as many that nobody has read, with an offer each to the group "g".
const crowd = `
    insert into notification_delivery (notification_id, task_id, sink, user_id, thread_id, task_name, run_id, traceparent,
           event_version, body, event_time, event_sequence, status, due_time, redriven)
    select 'ntf_' || md5(sink || i), 'task_' || i, sink, 'user_' || i % 100, 'thread_' || i % 500, '', '', '',
           1, '{}', now() - i * interval '1 second', i,
           case when sink = 'stream' or i % 1000 < 2 then 'pending' when i % 1000 = 2 then 'dead_letter' else 'delivered' end,
           case when sink = 'stream' or i % 1000 = 0 then now() - i * interval '1 millisecond' when i % 1000 = 1 then now() + interval '1 hour' end,
           i % 10000 = 0 and sink = 'paused'
      from unnest(array['ops', 'chat', 'paused', 'stream']) as s (sink), generate_series(1, 20000) as i;

    insert into notification_sink (sink, paused, pause_reason, update_time) values ('paused', true, '', now());

    insert into notification_offer (notification_id, group_name, sink, user_id, thread_id, event_sequence)
    select notification_id, g, sink, user_id, thread_id, event_sequence
      from notification_delivery, unnest(array['g', 'h']) as g
     where sink = 'stream';

    insert into notification_attempt (notification_id, attempt_number, event_version, end_time, outcome, sink_status, excerpt)
    select notification_id, n, 1, now(), 'retry', '', ''
      from notification_delivery, generate_series(1, 2) as n;

    insert into notification_group (sink, group_name, user_id, thread_id, seen_time)
    select 'stream', 'g' || i, 'user_' || i, 'thread_' || i, now() from generate_series(1, 5000) as i;

    analyze notification_delivery, notification_sink, notification_offer, notification_attempt, notification_group;`

// node is a step of a plan, as explain shows it.
type node struct {
	Type  string  `json:"Node Type"`
	Table string  `json:"Relation Name"`
	Index string  `json:"Index Name"`
	Rows  float64 `json:"Actual Rows"`
	Loops float64 `json:"Actual Loops"`
	Away  float64 `json:"Rows Removed by Filter"`
	Plans []node  `json:"Plans"`
}

// touched returns how many rows the steps of a plan read, and the whole scans of tables of ours.
func (n node) touched() (rows float64, scans []string) {
	if n.Table != "" {
		rows = (n.Rows + n.Away) * n.Loops
	}
	if n.Type == "Seq Scan" && n.Table != "notification_sink" { // which has a row for each sink
		scans = append(scans, n.Table)
	}
	for _, p := range n.Plans {
		r, s := p.touched()
		rows += r
		scans = append(scans, s...)
	}
	return rows, scans
}

// What loops ask must cost what they get, however much is done, paused, unread or of others.
func TestLoopsReadOnlyWhatTheyGet(t *testing.T) {
	pool := dbtest.Postgres(t).Pool()
	if _, err := pool.Exec(t.Context(), crowd); err != nil {
		t.Fatal(err)
	}
	sinks, known := []string{"ops", "chat", "paused"}, []string{"ops", "chat", "paused"}
	one := oneID(t, pool)
	for name, tt := range map[string]struct {
		query string
		args  []any
		limit float64
		// Its generic plan is dear, also by estimate, so Postgres plans it anew each time.
		custom bool
	}{
		"claim":           {pgstore.DueSQL, []any{sinks, known, 10}, 100, false},
		"claim with less": {pgstore.DueSQL, []any{sinks[:1], known[:1], 100}, 150, false},
		"next due":        {pgstore.NextDueSQL, []any{sinks}, 30, false},
		"record":          {pgstore.LockForTasksSQL, []any{[]string{"task_1", "task_2", "none"}, []string{"ops", "chat", "ops"}}, 20, false},
		"redrive one":     {pgstore.LockOneSQL, []any{one}, 2, false},
		"settle":          {pgstore.LockAllSQL, []any{[]string{one}}, 2, false},
		"save": {pgstore.SaveStatesSQL, []any{
			[]string{one}, []string{"1"}, []string{"pending"}, []string{"2026-01-01"}, []string{"null"}, []string{"1"}, []string{"0"}, []string{"run"},
			[]string{"0"}, []string{"0"}, []string{"no"}, []string{"null"}, []string{"f"}, []string{"null"}, []string{"ada"},
		}, 4, false},
		"renew":          {pgstore.LockBareSQL, []any{[]string{one}}, 2, false},
		"thin attempts":  {pgstore.ThinAttemptsSQL, []any{one, 1}, 4, false},
		"attempts":       {pgstore.AttemptsSQL, []any{one}, 2, false},
		"first page":     {pgstore.ListSQL, []any{[]string{}, "", "", nil, "", nil, 51}, 60, false},
		"page of a task": {pgstore.ListSQL, []any{[]string{}, "", "task_7", nil, "", nil, 51}, 10, true},
		"dead of a sink": {pgstore.ListSQL, []any{[]string{"dead_letter"}, "ops", "", nil, "", nil, 51}, 60, true},
		"prune":          {pgstore.PruneSQL, []any{3_600_000_000, 10}, 200, true},
		"states":         {pgstore.StatesSQL, []any{[]string{"ops", "chat", "paused"}}, 300, false},
		"resume":         {pgstore.ResumeSQL, []any{"ops"}, 150, false},
		"stream":         {pgstore.NextSQL, []any{"stream", "g", "", "", 0, 10, "c", 1000}, 60, true},
		"stream of one":  {pgstore.NextInScopeSQL, []any{"stream", "g", "user_7", "thread_7", 0, 10, "c", 1000}, 60, false},
		"stream after":   {pgstore.NextInScopeSQL, []any{"stream", "g", "user_7", "thread_7", 19_990, 10, "c", 1000}, 150, false},
		"seen":           {pgstore.SeenSQL, []any{"stream", "user_7", "thread_7", "g7"}, 2, false},
		"withdraw":       {pgstore.WithdrawSQL, []any{[]string{one}}, 4, false},
		"offer":          {pgstore.OfferSQL, []any{[]string{one}}, 20, false},
		"acknowledge":    {pgstore.AcknowledgeSQL, []any{one, "g"}, 4, false},
		"find to ack":    {pgstore.LockForTaskSQL, []any{"task_1", "stream"}, 2, false},
		"forget groups":  {pgstore.ForgetGroupsSQL, []any{3_600_000_000}, 2, false},
		"forget":         {pgstore.ForgetSQL, []any{3_600_000_000, []string{"ops", "chat", "paused"}, 10}, 200, true},
	} {
		t.Run(name, func(t *testing.T) {
			modes := []string{"force_custom_plan", "force_generic_plan"}
			if tt.custom {
				modes = modes[:1]
			}
			for _, mode := range modes {
				plan, text := explain(t, pool, mode, tt.query, tt.args...)
				rows, scans := plan.touched()
				if rows > tt.limit || len(scans) > 0 {
					t.Errorf("%s: it reads %v rows, want at most %v, and scans %v:\n%s", mode, rows, tt.limit, scans, text)
				}
			}
		})
	}
}

func oneID(t *testing.T, pool *pgxpool.Pool) (id string) {
	t.Helper()
	err := pool.QueryRow(t.Context(), "select notification_id from notification_delivery where task_id = 'task_1' and sink = 'stream'").Scan(&id)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// explain runs a prepared statement under a plan_cache_mode and takes it back.
func explain(t *testing.T, pool *pgxpool.Pool, mode, query string, args ...any) (plan node, text string) {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	var values []string
	for _, arg := range args {
		values = append(values, literal(arg))
	}
	for _, statement := range []string{"set local plan_cache_mode = " + mode, "prepare explained as " + query} {
		if _, err := tx.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%v:\n%s", err, statement)
		}
	}
	execute := "explain (analyze, format json) execute explained (" + strings.Join(values, ", ") + ")"
	if err := tx.QueryRow(t.Context(), execute).Scan(&text); err != nil {
		t.Fatalf("%v:\n%s", err, execute)
	}
	if _, err := tx.Exec(t.Context(), "deallocate explained"); err != nil {
		t.Fatal(err)
	}
	var explained []struct{ Plan node }
	if err := json.Unmarshal([]byte(text), &explained); err != nil || len(explained) != 1 {
		t.Fatalf("the plan is not as expected: %v", err)
	}
	return explained[0].Plan, text
}

// literal writes a parameter, without anything to escape, into a statement.
func literal(arg any) string {
	switch v := arg.(type) {
	case nil:
		return "null"
	case string:
		return "'" + v + "'"
	case []string:
		return "'{" + strings.Join(v, ",") + "}'"
	default:
		return fmt.Sprint(v)
	}
}
