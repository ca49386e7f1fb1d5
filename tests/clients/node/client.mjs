// Registers, encodes and decodes with the schema registry client of KafkaJS: node client.mjs ADDRESS SECRET SUBJECT
import { SchemaRegistry, SchemaType } from '@kafkajs/confluent-schema-registry'

const [host, password, subject] = process.argv.slice(2)
const registry = new SchemaRegistry({ host, auth: { username: 'admin', password } })

const avro = { type: 'record', name: 'User', namespace: 'node', fields: [{ name: 'id', type: 'long' }] }
const json = { type: 'object', additionalProperties: false, properties: { id: { type: 'integer' } } }
const protobuf = 'syntax = "proto3"; package node; message User { int64 id = 1; }'

const found = {}
for (const [type, schema] of [
  [SchemaType.AVRO, JSON.stringify(avro)],
  [SchemaType.JSON, JSON.stringify(json)],
  [SchemaType.PROTOBUF, protobuf],
]) {
  const name = `${subject}-${type}`
  const { id } = await registry.register({ type, schema }, { subject: name })
  const record = await registry.decode(await registry.encode(id, { id: 7 }))
  found[type] = {
    id,
    latest: await registry.getLatestSchemaId(name),
    looked_up: await registry.getRegistryIdBySchema(name, { type, schema }),
    record: Number(record.id),
  }
}
console.log(JSON.stringify(found))
