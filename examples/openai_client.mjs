// OpenAI's own client on a mesh: (cd examples && npm install), then
// node examples/openai_client.mjs ["a question"]
//
// Address and key are OpenAI's usual variables; without them, the mesh on this machine.

import OpenAI from "openai";

const client = new OpenAI({
  baseURL: process.env.OPENAI_BASE_URL ?? "http://127.0.0.1:8080/v1",
  apiKey: process.env.OPENAI_API_KEY ?? "local",
});
const question = process.argv[2] ?? "What is a neural network?";

const model = (await client.models.list()).data[0].id;
const stream = await client.chat.completions.create({
  model,
  messages: [{ role: "user", content: question }],
  temperature: 0.3,
  max_completion_tokens: 256,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.delta.content ?? "");
  if (chunk.usage) console.error(`\n${chunk.usage.completion_tokens} tokens of ${model}`);
}
