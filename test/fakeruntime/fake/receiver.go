package fake

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// maxDelivery bounds the body of a delivery that the receiver reads.
const maxDelivery = 32 << 20

// ReceiverOptions describe a receiver.
type ReceiverOptions struct {
	// Keys verify deliveries: whsec_… and whpk_… texts. A delivery that none of them fits is answered with 401 and meets no
	// step. Without keys nothing is verified.
	Keys []string
	// Plan says how deliveries are answered; empty means 200 for all:
	//
	//	204                              this status
	//	503;retry=2                      with the header Retry-After: 2 (a number of seconds, or @2 for a date so far ahead)
	//	302;location=http://127.0.0.1/   with the header Location
	//	200;delay=5s                     after so long
	//	200;body=huge                    with a body of 32 MiB; body=drip: a byte every 100 ms, for ever; other text as it is
	//	hang                             no answer until the caller gives up
	//	drop                             the connection is closed without one
	Plan Plan
	// Paths are plans for single paths, such as "/hooks/a".
	Paths map[string]Plan
	// Journal keeps the deliveries; nil makes one.
	Journal *Journal
}

// Receiver takes webhooks on every path. It is an http.Handler; use one per server.
type Receiver struct {
	keys    []key
	script  *script
	journal *Journal

	running sync.WaitGroup
}

// NewReceiver returns a receiver.
func NewReceiver(o ReceiverOptions) (*Receiver, error) {
	r := &Receiver{journal: o.Journal}
	if r.journal == nil {
		r.journal = NewJournal(nil)
	}
	for _, text := range o.Keys {
		k, err := parseKey(text)
		if err != nil {
			return nil, fmt.Errorf("receiver: %w", err)
		}
		r.keys = append(r.keys, k)
	}
	var err error
	r.script, err = newScript(o.Plan, o.Paths, "200", map[string][]string{
		"N": {"retry", "location", "delay:", "body"}, "hang": nil, "drop": nil,
	})
	if err != nil {
		return nil, fmt.Errorf("receiver: %w", err)
	}
	return r, nil
}

// Deliveries returns every delivery that arrived, in the order in which they were answered.
func (r *Receiver) Deliveries() []Record { return r.journal.Records(KindDelivery) }

// SetPlan replaces the plan of a path, or the common one where path is empty.
func (r *Receiver) SetPlan(path string, p Plan) error { return r.script.set(path, p) }

// wait returns when no handler is running.
func (r *Receiver) wait() { r.running.Wait() }

// ServeHTTP takes a delivery.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.running.Add(1)
	defer r.running.Done()
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxDelivery))
	if err != nil {
		http.Error(w, "the body cannot be read", http.StatusBadRequest)
		return
	}
	record := Record{
		Kind: KindDelivery, Path: req.URL.Path, Body: string(body), ContentType: req.Header.Get("Content-Type"),
		WebhookID: req.Header.Get("webhook-id"), WebhookTimestamp: req.Header.Get("webhook-timestamp"),
		WebhookSignature: req.Header.Get("webhook-signature"),
	}
	if req.Method != http.MethodPost {
		record.Refused, record.HTTPStatus = "the method is "+req.Method, http.StatusMethodNotAllowed
	} else if len(r.keys) > 0 {
		if record.Verified, err = verify(r.keys, req.Header, body, time.Now()); err != nil {
			record.Refused, record.HTTPStatus = err.Error(), http.StatusUnauthorized
		}
	}
	if record.Refused != "" {
		r.journal.add(record)
		http.Error(w, record.Refused, record.HTTPStatus)
		return
	}
	step := r.script.next(req.URL.Path)
	record.Step = step.Word
	record.HTTPStatus, _ = strconv.Atoi(step.Word) // 0 for words
	r.journal.add(record)
	answer(w, req, step)
}

func answer(w http.ResponseWriter, req *http.Request, step Step) {
	switch step.Word {
	case "hang":
		<-req.Context().Done()
		return
	case "drop":
		panic(http.ErrAbortHandler)
	}
	if !pause(req.Context(), step.duration("delay")) {
		return
	}
	if at, ok := step.Args["retry"]; ok {
		if seconds, isDate := strings.CutPrefix(at, "@"); isDate {
			n, _ := strconv.Atoi(seconds)
			at = time.Now().Add(time.Duration(n) * time.Second).UTC().Format(http.TimeFormat)
		}
		w.Header().Set("Retry-After", at)
	}
	if to, ok := step.Args["location"]; ok {
		w.Header().Set("Location", to)
	}
	status, _ := strconv.Atoi(step.Word)
	w.WriteHeader(status)
	flush := http.NewResponseController(w).Flush
	switch body := step.Args["body"]; body {
	case "huge":
		block := []byte(strings.Repeat("x", 64<<10))
		for range 512 {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	case "drip":
		for pause(req.Context(), 100*time.Millisecond) {
			if _, err := io.WriteString(w, "x"); err != nil || flush() != nil {
				return
			}
		}
	default:
		_, _ = io.WriteString(w, body) // the caller may have gone
	}
}

// pause waits and reports whether the caller is still there.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
