package scenario

import (
	"encoding/base64"
	"encoding/json"
	"strconv"
	"testing"

	toolproxyv1 "github.com/toolherd/toolherd/proto/gen/toolherd/toolproxy/v1"
	"github.com/toolherd/toolherd/test/rawrpc"
)

// typed is what view TYPED has to say about a server's result object, by the contract in content.proto.
func typed(t *testing.T, result string) *toolproxyv1.ToolResult {
	t.Helper()
	raw := json.RawMessage(result)
	out := &toolproxyv1.ToolResult{
		StructuredContentJson: text(rawrpc.Member(raw, "structuredContent")),
		IsError:               string(rawrpc.Member(raw, "isError")) == "true",
		MetaJson:              text(rawrpc.Member(raw, "_meta")),
	}
	var blocks []json.RawMessage
	if content := rawrpc.Member(raw, "content"); content != nil {
		if err := json.Unmarshal(content, &blocks); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range blocks {
		out.Content = append(out.Content, block(t, b))
	}
	return out
}

// text is a member as it stands; null counts as absent.
func text(raw json.RawMessage) string {
	if string(raw) == "null" {
		return ""
	}
	return string(raw)
}

func block(t *testing.T, raw json.RawMessage) *toolproxyv1.ContentBlock {
	t.Helper()
	b := &toolproxyv1.ContentBlock{
		AnnotationsJson: text(rawrpc.Member(raw, "annotations")), MetaJson: text(rawrpc.Member(raw, "_meta")),
	}
	get := func(name string) string { return rawrpc.Text(raw, name) }
	media := func() *toolproxyv1.MediaContent {
		return &toolproxyv1.MediaContent{Data: decode(t, get("data")), MimeType: get("mimeType")}
	}
	switch get("type") {
	case "text":
		b.Block = &toolproxyv1.ContentBlock_Text{Text: &toolproxyv1.TextContent{Text: get("text")}}
	case "image":
		b.Block = &toolproxyv1.ContentBlock_Image{Image: media()}
	case "audio":
		b.Block = &toolproxyv1.ContentBlock_Audio{Audio: media()}
	case "resource_link":
		link := &toolproxyv1.ResourceLink{
			Uri: get("uri"), Name: get("name"), Title: get("title"), Description: get("description"), MimeType: get("mimeType"),
			IconsJson: text(rawrpc.Member(raw, "icons")),
		}
		if size := rawrpc.Member(raw, "size"); size != nil {
			n, err := strconv.ParseInt(string(size), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			link.Size = &n
		}
		b.Block = &toolproxyv1.ContentBlock_ResourceLink{ResourceLink: link}
	case "resource":
		inner := rawrpc.Member(raw, "resource")
		r := &toolproxyv1.EmbeddedResource{
			Uri: rawrpc.Text(inner, "uri"), MimeType: rawrpc.Text(inner, "mimeType"), MetaJson: text(rawrpc.Member(inner, "_meta")),
		}
		if blob := rawrpc.Text(inner, "blob"); blob != "" {
			r.Contents = &toolproxyv1.EmbeddedResource_Blob{Blob: decode(t, blob)}
		} else {
			r.Contents = &toolproxyv1.EmbeddedResource_Text{Text: rawrpc.Text(inner, "text")}
		}
		b.Block = &toolproxyv1.ContentBlock_Resource{Resource: r}
	default:
		return &toolproxyv1.ContentBlock{Block: &toolproxyv1.ContentBlock_OtherJson{OtherJson: string(raw)}}
	}
	return b
}

func decode(t *testing.T, s string) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
