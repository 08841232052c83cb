package cli

import (
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/toolherd/toolherd/cmd/toolherd/internal/terminal"
	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
)

func progressLine(p *toolproxyv1.Progress) string {
	line := fmt.Sprintf("progress %g", p.GetProgress())
	if p.Total != nil {
		line += fmt.Sprintf(" of %g", p.GetTotal())
	}
	if p.GetMessage() != "" {
		line += ": " + p.GetMessage()
	}
	return line
}

// printHandle prints a task that was taken in, and how to follow it.
func (c *client) printHandle(s Streams, h *toolproxyv1.TaskHandle, scope scopeFlags) error {
	if _, err := fmt.Fprintf(s.Out, "%s\n", terminal.Line(h.GetTaskId())); err != nil {
		return err
	}
	id := terminal.Line(h.GetTaskId()) + scope.arguments()
	fmt.Fprintf(s.Err, "task %q works in the background; follow it with 'toolherd tasks watch %s', end it with 'toolherd tasks cancel %s'\n",
		terminal.Line(h.GetTaskName()), id, id)
	if c.composed {
		fmt.Fprintln(s.Err, "it is asked for its state while a toolherd runs on this state directory: 'toolherd up'")
	}
	return nil
}

func printOutcome(s Streams, form string, out *toolproxyv1.CallToolResponse) error {
	result := out.GetResult()
	if form == outputJSON && result == nil {
		return printMessage(s.Out, out)
	}
	if form == outputJSON {
		info, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(out.GetInfo())
		if err != nil {
			return err
		}
		raw := fmt.Appendf(nil, `{"result":%s,"info":%s}`, result.GetResultJson(), info)
		if err := printJSON(s.Out, raw); err != nil {
			return err
		}
		var flag struct {
			IsError bool `json:"isError"`
		}
		if json.Unmarshal([]byte(result.GetResultJson()), &flag) == nil && flag.IsError {
			return errReported
		}
		return nil
	}
	if q := out.GetInputRequired(); q != nil {
		fmt.Fprintln(s.Err, "the server asks something before it goes on, which this command cannot answer:")
		return errors.Join(printJSON(s.Err, json.RawMessage(q.GetInputRequestsJson())), errReported)
	}
	w := s.Out
	if result.GetIsError() {
		w = s.Err
	}
	for _, block := range result.GetContent() {
		fmt.Fprintln(w, blockText(block))
	}
	if len(result.GetContent()) == 0 && result.GetStructuredContentJson() != "" {
		if err := printJSON(w, json.RawMessage(result.GetStructuredContentJson())); err != nil {
			return err
		}
	}
	if result.GetIsError() {
		return errReported
	}
	return nil
}

func blockText(block *toolproxyv1.ContentBlock) string {
	switch b := block.GetBlock().(type) {
	case *toolproxyv1.ContentBlock_Text:
		return terminal.Text(b.Text.GetText())
	case *toolproxyv1.ContentBlock_Image:
		return fmt.Sprintf("[image %s, %d bytes]", terminal.Line(b.Image.GetMimeType()), len(b.Image.GetData()))
	case *toolproxyv1.ContentBlock_Audio:
		return fmt.Sprintf("[audio %s, %d bytes]", terminal.Line(b.Audio.GetMimeType()), len(b.Audio.GetData()))
	case *toolproxyv1.ContentBlock_ResourceLink:
		return fmt.Sprintf("[resource %s]", terminal.Line(b.ResourceLink.GetUri()))
	case *toolproxyv1.ContentBlock_Resource:
		if text := b.Resource.GetText(); text != "" {
			return terminal.Text(text)
		}
		return fmt.Sprintf("[resource %s, %d bytes]", terminal.Line(b.Resource.GetUri()), len(b.Resource.GetBlob()))
	default:
		return terminal.Text(block.GetOtherJson())
	}
}
