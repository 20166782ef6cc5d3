import { Validator, type OutputUnit, type Schema } from '@cfworker/json-schema';
import {
  createErrorHandler,
  toErrorList,
  toErrorSchema,
  unwrapErrorHandler,
  validationDataMerge,
  type CustomValidator,
  type ErrorTransformer,
  type RJSFSchema,
  type RJSFValidationError,
  type UiSchema,
  type ValidationData,
  type ValidatorType,
} from '@rjsf/utils';

/** Checks what was typed without making code of the schema, which the page's CSP forbids (ajv does). */
export const validator: ValidatorType = {
  validateFormData(
    formData: unknown,
    schema: RJSFSchema,
    customValidate?: CustomValidator,
    transformErrors?: ErrorTransformer,
    uiSchema?: UiSchema,
  ): ValidationData<unknown> {
    let errors = faultsOf(schema, formData);
    if (transformErrors) errors = transformErrors(errors, uiSchema);
    const data = { errors, errorSchema: toErrorSchema(errors) };
    if (!customValidate) return data;
    const handled = unwrapErrorHandler(customValidate(formData, createErrorHandler(formData), uiSchema));
    return validationDataMerge({ ...data, errors: toErrorList(data.errorSchema) }, handled);
  },
  isValid(schema: RJSFSchema, formData: unknown, rootSchema: RJSFSchema): boolean {
    const defs = { $defs: rootSchema.$defs, definitions: rootSchema.definitions };
    return outputs({ ...clean(defs), ...schema }, formData).length === 0;
  },
  rawValidation<Result>(schema: RJSFSchema, formData?: unknown) {
    return { errors: faultsOf(schema, formData) as Result[] };
  },
};

function faultsOf(schema: RJSFSchema, data: unknown): RJSFValidationError[] {
  const seen = new Set<string>();
  return outputs(schema, data).filter(leaf).map(faultOf).filter((fault) => {
    const name = `${fault.property} ${fault.message}`;
    return !seen.has(name) && seen.add(name);
  });
}

function outputs(schema: RJSFSchema, data: unknown): OutputUnit[] {
  try {
    return new Validator(schema as Schema, '2020-12', false).validate(data === undefined ? {} : withoutUndefined(data)).errors;
  } catch {
    return []; // a schema that cannot be read: the server checks the action anyway
  }
}

/** Not the units that only say that something below them is wrong. */
function leaf(unit: OutputUnit): boolean {
  return !['properties', '$ref', 'items', 'additionalProperties', 'allOf', 'prefixItems'].includes(unit.keyword) || (unit.keyword === 'additionalProperties' && /additional/i.test(unit.error));
}

function faultOf(unit: OutputUnit): RJSFValidationError {
  const missing = unit.keyword === 'required' ? /property "(.+?)"/.exec(unit.error)?.[1] : undefined;
  const path = unit.instanceLocation.replace(/^#\/?/, '').split('/').filter(Boolean).map((part) => decodeURIComponent(part).replace(/~1/g, '/').replace(/~0/g, '~'));
  if (missing !== undefined) path.push(missing);
  const property = path.map((part) => (/^\d+$/.test(part) ? `[${part}]` : `.${part}`)).join('');
  const message = missing !== undefined ? 'is needed' : unit.error.replace(/\.$/, '');
  return { name: unit.keyword, property, message, stack: `${property.replace(/^\./, '')} ${message}`.trim(), params: {} };
}

function withoutUndefined(data: unknown): unknown {
  return JSON.parse(JSON.stringify(data));
}

function clean<T extends object>(thing: T): Partial<T> {
  return Object.fromEntries(Object.entries(thing).filter(([, value]) => value !== undefined)) as Partial<T>;
}
