"""Asks a running `wedlm serve`, all at once and as a stream: python examples/server_client.py [ADDRESS]"""

import sys

import openai

address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
client = openai.OpenAI(base_url=address, api_key="none")
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "Count by 5 from 10 to 60."}]

answer = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=80)
print(answer.choices[0].message.content)

stream = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=80, stream=True)
for event in stream:
    print(event.choices[0].delta.content or "", end="|")  # several tokens an event
print()
