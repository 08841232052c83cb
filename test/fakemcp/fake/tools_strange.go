package fake

import (
	"context"
	"encoding/json"

	"github.com/toolherd/toolherd/test/rawrpc"
)

// strangeTools have legal definitions that careless code loses or rejects. All of them echo.
func strangeTools() []tool {
	return []tool{
		{
			name: "strange_ref", about: "Its schema uses $ref and $defs.", run: echo,
			schema: `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{"from":{"$ref":"#/$defs/point"},"to":{"$ref":"#/$defs/point"}},"required":["from"],"$defs":{"point":{"type":"object","properties":{"y":{"type":"number"},"x":{"type":"number"}},"required":["x","y"]}}}`,
		},
		{
			name: "strange_recursive", about: "Its schema refers to itself.", run: echo,
			schema: `{"type":"object","properties":{"tree":{"$ref":"#/$defs/node"}},"$defs":{"node":{"type":"object","properties":{"value":{},"children":{"type":"array","items":{"$ref":"#/$defs/node"}}}}}}`,
		},
		{
			name: "strange_array", about: "Its array has no items.", run: echo,
			schema: `{"type":"object","properties":{"ids":{"type":"array","description":"ids"},"any":true,"none":false}}`,
		},
		{
			name: "strange_numbers", about: "Its schema has numbers that do not survive a float.", run: echo,
			schema: `{"type":"object","properties":{"n":{"type":"integer","maximum":9007199254740993,"default":1.0},"f":{"type":"number","multipleOf":0.10}},"x-zeta":1E5,"additionalProperties":false}`,
		},
		{
			name: "strange_order", about: "Its members are in no order, and some are unknown.", run: echo,
			schema: `{"required":["z","a"],"properties":{"z":{"x-order":2,"type":"string"},"a":{"type":"string","x-order":1}},"type":"object","x-vendor":{"nested":{"b":[],"a":null}}}`,
		},
		{
			name: "strange_meta", about: "Title, icons, annotations, output schema and _meta.\nA second line with `backticks` & <tags>.",
			run: func(ctx context.Context, c *call) (json.RawMessage, *rawrpc.Error) {
				if c.args == nil {
					c.args = json.RawMessage("{}") // the output schema asks for structured content
				}
				return echo(ctx, c)
			},
			schema: `{"type":"object","properties":{}}`,
			more: `"title":"Strange meta","icons":[{"src":"data:image/png;base64,","mimeType":"image/png","sizes":["48x48"]}],` +
				`"annotations":{"title":"Annotated","readOnlyHint":true,"destructiveHint":false,"x-hint":1.10},` +
				`"outputSchema":{"type":"object","additionalProperties":true},` +
				`"x-future":{"k":9007199254740993},"_meta":{"fake.test/owner":"fake","fake.test/cost":1.0}`,
		},
		{name: "strange_bare", run: echo},
		{name: "_strange-name.v2", about: "Its name uses every kind of character that a name may have.", run: echo},
	}
}
